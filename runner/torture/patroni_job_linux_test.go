package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// The job's own way to the database, and where it writes down what it has done.
const (
	jobDSNVariable = "TORTURE_JOB_DSN"
	jobDirVariable = "TORTURE_JOB_DIR"
)

// patience is how long a job waits for an answer before it tries with another
// connection. Its fate is pglead's business.
const patience = 5 * time.Second

// job is a witness that also writes, a line at a time, into a table that the
// fencing token guards, in the way that cmd/REFERENCE.md says.
func job() {
	log, err := os.OpenFile(filepath.Join(os.Getenv(jobDirVariable), strconv.Itoa(os.Getpid())), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		panic(err)
	}
	go func() {
		var conn *pgconn.PgConn
		for seq := 1; ; seq++ {
			if conn == nil || conn.IsClosed() {
				ctx, cancel := context.WithTimeout(context.Background(), 2*patience) // there are three hosts
				conn, err = pgconn.Connect(ctx, os.Getenv(jobDSNVariable))
				cancel()
				if err != nil {
					time.Sleep(100 * time.Millisecond)
					continue
				}
			}
			called := uptime()
			_, _ = fmt.Fprintf(log, "%s call %s %d %d\n", os.Getenv("PGLEAD_LOCK_KEY"), os.Getenv("PGLEAD_TOKEN"), seq, called)
			n, err := writeFenced(conn, seq)
			switch {
			case err == nil:
				_, _ = fmt.Fprintf(log, "%s done %s %d %d %d\n", os.Getenv("PGLEAD_LOCK_KEY"), os.Getenv("PGLEAD_TOKEN"), seq, uptime(), n)
			case errors.Is(err, errFenced):
				_, _ = fmt.Fprintf(log, "%s fenced %s %d %d\n", os.Getenv("PGLEAD_LOCK_KEY"), os.Getenv("PGLEAD_TOKEN"), seq, uptime())
				return
			default:
				closeSoon(conn)
				conn = nil
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	command()
}

var errFenced = errors.New("a newer one runs")

// writeFenced writes one line, unless somebody with a newer token has written.
func writeFenced(conn *pgconn.PgConn, seq int) (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	key, token := os.Getenv("PGLEAD_LOCK_KEY"), os.Getenv("PGLEAD_TOKEN")
	results, err := conn.Exec(ctx, fmt.Sprintf(`BEGIN; UPDATE jobs SET fence = %[2]s, n = n + 1
		WHERE key = '%[1]s' AND fence <= %[2]s AND cluster = %[3]s RETURNING n`, key, token, os.Getenv("PGLEAD_SYSTEM_ID"))).ReadAll()
	if err != nil {
		return 0, err
	}
	if len(results) != 2 || len(results[1].Rows) != 1 {
		return 0, errFenced
	}
	number := string(results[1].Rows[0][0])
	if _, err := conn.Exec(ctx, fmt.Sprintf("INSERT INTO lines VALUES ('%s', %s, %s, %d)", key, number, token, seq)).ReadAll(); err != nil {
		return 0, err
	}
	results, err = conn.Exec(ctx, "COMMIT").ReadAll()
	if err == nil && (len(results) != 1 || results[0].CommandTag.String() != "COMMIT") {
		err = errors.New("not committed")
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(number, 10, 64)
}

// jobTables are what the jobs write into.
const jobTables = `CREATE TABLE jobs (key text PRIMARY KEY, n bigint DEFAULT 0, fence bigint DEFAULT 0, cluster bigint);
	CREATE TABLE lines (key text, n bigint, token bigint, seq bigint)`

// line is what a job has written: seq counts its own attempts, and n all lines.
type line struct{ n, token, seq int64 }

// write is an attempt of a job to write a line.
type write struct {
	line
	called, answered time.Duration // answered is 0 if nothing is known of it
	fenced           bool
}

// readWrites collects what the jobs have written down, by key.
func readWrites(dir string) (map[string][]write, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	all := map[string][]write{}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		for scanner := bufio.NewScanner(file); scanner.Scan(); {
			fields := strings.Fields(scanner.Text())
			if len(fields) < 5 {
				continue // it was killed as it wrote this
			}
			numbers := make([]int64, 4)
			for i, field := range fields[2:] {
				if numbers[i], err = strconv.ParseInt(field, 10, 64); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
			}
			key, token, seq, at := fields[0], numbers[0], numbers[1], time.Duration(numbers[2])
			if fields[1] == "call" {
				all[key] = append(all[key], write{line: line{token: token, seq: seq}, called: at})
				continue
			}
			w := &all[key][len(all[key])-1] // a job's own, since files are read one by one
			w.answered, w.n, w.fenced = at, numbers[3], fields[1] == "fenced"
		}
		_ = file.Close()
	}
	return all, nil
}

// misdeeds are what must not have happened to the lines of one key: found is what
// is in the table, in the order of n.
func misdeeds(found []line, written []write) []string {
	var bad []string
	there := map[line]bool{}
	for i, l := range found {
		there[l] = true
		if i > 0 && (l.token < found[i-1].token || l.n <= found[i-1].n) {
			bad = append(bad, fmt.Sprintf("out of order: %+v after %+v", l, found[i-1]))
		}
	}
	for _, w := range written {
		if w.answered != 0 && !w.fenced && !there[w.line] {
			bad = append(bad, fmt.Sprintf("acknowledged and lost: %+v", w.line))
		}
	}
	return bad
}
