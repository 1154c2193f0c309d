module github.com/pglead/pglead/testdata/interop/golang-migrate

go 1.26.0

require github.com/golang-migrate/migrate/v4 v4.19.1
