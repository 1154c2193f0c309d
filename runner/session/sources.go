package session

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgservicefile"
	"github.com/jackc/pgx/v5/pgconn"
)

// sources reads connection strings, with all that the service file and the password file add
// to them.
type sources struct {
	service string // which service adds to it, and its file
	ignored string // the password file, if it is ignored because others may read it
	key     string // the private key's file, if it may be used
}

// parse parses dsn. With a service it does so once to see whether dsn can be parsed at all, and
// again with the file that has the service.
func (s *sources) parse(dsn string) (*pgconn.Config, error) {
	cfg, err := s.config(dsn)
	service := serviceName(dsn)
	if service == "" || err != nil && strings.Contains(err.Error(), "failed to parse as") { // then the name may be part of a password
		return cfg, err
	}
	if own, statErr := os.Stat(serviceFile(dsn)); err == nil && statErr == nil && !own.Mode().IsRegular() {
		return cfg, nil // such as a pipe, which has been read by now
	}
	file, err := fileWithService(dsn, service)
	if err != nil {
		return nil, err
	}
	s.service = fmt.Sprintf("service %q of %q", service, file)
	return s.config(withParam(dsn, "servicefile", file))
}

// fileWithService returns the first file that has the service: the user's own or, as with libpq, a
// system-wide one. It refuses a file that has the service twice. libpq takes the first one and
// pgconn the last, which may be another database; a lock there excludes nobody here.
func fileWithService(dsn, service string) (string, error) {
	var files, looked []string
	if own := serviceFile(dsn); own != "" {
		files = append(files, own)
	}
	for _, dir := range []string{os.Getenv("PGSYSCONFDIR"), "/etc/postgresql-common", "/etc"} {
		if dir != "" {
			files = append(files, filepath.Join(dir, "pg_service.conf"))
		}
	}
	for _, file := range files {
		services, err := pgservicefile.ReadServicefile(file)
		var unread *fs.PathError
		switch {
		case errors.Is(err, fs.ErrNotExist):
			looked = append(looked, file)
			continue
		case errors.As(err, &unread):
			looked = append(looked, fmt.Sprintf("%s (%s)", file, unread.Err))
			continue
		case err != nil: // a line that is neither a section nor in one, or that has no value
			return "", fmt.Errorf("syntax error in service file %q, %s", file, cmp.Or(lineNumber.FindString(err.Error()), err.Error()))
		}
		looked = append(looked, file)
		switch found := slices.DeleteFunc(services.Services, func(s *pgservicefile.Service) bool { return s.Name != service }); len(found) {
		case 0:
		case 1:
			return file, nil
		default:
			return "", fmt.Errorf("the service %s occurs %d times in %q", shownService(service), len(found), file)
		}
	}
	return "", fmt.Errorf("no service %s: looked in %s", shownService(service), strings.Join(looked, ", "))
}

var lineNumber = regexp.MustCompile(`line \d+`)

// shownService is a service's name for a message. One with odd characters is not shown: it may be
// part of a mangled connection string, and so of a password.
func shownService(name string) string {
	if strings.Trim(strings.ToLower(name), lowerCase+"0123456789_-.") != "" {
		return "of that name"
	}
	return strconv.Quote(name)
}

// config is pgconn's configuration, but without a password from a file that others may read. libpq
// ignores such a file (passwordFromFile in fe-connect.c), but pgconn doesn't.
func (s *sources) config(dsn string) (*pgconn.Config, error) {
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil && strings.Contains(err.Error(), "failed to configure TLS") {
		cfg, err = withoutTLSFiles(dsn, err)
	}
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(Hosts(cfg), presentsKey) {
		s.key = namedFile(dsn, "sslkey", ".postgresql/postgresql.key")
	}
	file := namedFile(dsn, "passfile", ".pgpass")
	if !readByOthers(file) {
		return cfg, nil
	}
	without, err := pgconn.ParseConfig(withParam(dsn, "passfile", os.DevNull))
	if err != nil || without.Password != "" { // the password comes from elsewhere
		return cfg, err
	}
	s.ignored = file
	return without, nil
}

// withoutTLSFiles is the configuration if the connection string rules TLS out: then libpq doesn't
// look at the files for it, but pgconn does. Otherwise it returns pgconn's error with the file that
// it is about.
func withoutTLSFiles(dsn string, cause error) (*pgconn.Config, error) {
	without := dsn
	for _, name := range []string{"sslrootcert", "sslcert", "sslkey"} {
		without = withParam(without, name, "")
	}
	cfg, err := pgconn.ParseConfig(without)
	if err == nil && !slices.ContainsFunc(Hosts(cfg), func(f *pgconn.FallbackConfig) bool { return f.TLSConfig != nil }) {
		return cfg, nil
	}
	cert, key := namedFile(dsn, "sslcert", ".postgresql/postgresql.crt"), namedFile(dsn, "sslkey", ".postgresql/postgresql.key")
	for _, about := range []struct{ text, said string }{
		{"unable to add CA to cert pool", fmt.Sprintf("sslrootcert: no certificate in %q", namedFile(dsn, "sslrootcert", ".postgresql/root.crt"))},
		{"failed to decode sslkey", fmt.Sprintf("sslkey: no key in %q", key)},
		{"unable to load cert", fmt.Sprintf("load sslcert %q with sslkey %q: %s", cert, key, innermost(cause))},
	} {
		if strings.Contains(cause.Error(), about.text) {
			return nil, errors.New(about.said)
		}
	}
	return nil, cause
}

// IgnoredCRL is the list of revoked certificates that libpq reads by default, if the file exists.
// pglead can't read it. (If another is named, ParseDSN refuses that.)
func IgnoredCRL() string {
	file := namedFile("", "sslcrl", ".postgresql/root.crl")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// presentsKey says whether a client's private key may be used for a host.
func presentsKey(f *pgconn.FallbackConfig) bool {
	return f.TLSConfig != nil && len(f.TLSConfig.Certificates) > 0
}

// keyMode says which mode a private key's file may have at most, and whether it has more, so that
// libpq refuses it. The group may read a file of root's.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/interfaces/libpq/fe-secure-openssl.c (initialize_SSL)
func keyMode(file string) (most fs.FileMode, exceeded bool) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, false
	}
	most = 0o600
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid == 0 {
		most = 0o640
	}
	return most, info.Mode().Perm()&0o077&^most != 0
}

// readByOthers says whether the group or the world has access to a plain file.
func readByOthers(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0
}

// namedFile is the file that a parameter names, in the connection string or its service, or its
// variable, or else libpq's default in the home directory.
func namedFile(dsn, parameter, standard string) string {
	if file, found := given(dsn, parameter); found {
		return file
	}
	if service := serviceName(dsn); service != "" {
		if services, err := pgservicefile.ReadServicefile(serviceFile(dsn)); err == nil {
			if of, err := services.GetService(service); err == nil && of.Settings[parameter] != "" {
				return of.Settings[parameter]
			}
		}
	}
	return fromHome("PG"+strings.ToUpper(parameter), standard)
}

// serviceName is the service that a connection string or the environment names.
func serviceName(dsn string) string {
	if service, found := given(dsn, "service"); found {
		return service
	}
	return os.Getenv("PGSERVICE")
}

// serviceFile is the file that pgconn reads for a connection string.
func serviceFile(dsn string) string {
	if file, found := given(dsn, "servicefile"); found {
		return file
	}
	return fromHome("PGSERVICEFILE", ".pg_service.conf")
}

// fromHome is the file that a variable names or, without the variable, the file of this name in the
// home directory. It is empty if there is no home directory.
func fromHome(variable, name string) string {
	if file := os.Getenv(variable); file != "" {
		return file
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, name)
}

// keywordValue matches a parameter of a connection string that pgconn has accepted.
var keywordValue = regexp.MustCompile(`(?s)([^\s=]+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s\\]|\\.)*))`)

// given is a parameter's value in a connection string that pgconn has accepted. If it occurs
// more than once, the last one counts.
func given(dsn, name string) (value string, found bool) {
	if isURI(dsn) {
		_, query, _ := strings.Cut(dsn, "?")
		for pair := range strings.SplitSeq(query, "&") {
			if key, text, _ := strings.Cut(pair, "="); key == name {
				value, _ = url.PathUnescape(text) // pgconn has done it without an error
				found = true
			}
		}
		return value, found
	}
	for _, pair := range keywordValue.FindAllStringSubmatch(dsn, -1) {
		if pair[1] == name {
			value, found = unescaped.ReplaceAllString(pair[2]+pair[3], "$1"), true
		}
	}
	return value, found
}

var unescaped = regexp.MustCompile(`(?s)\\(.)`)
