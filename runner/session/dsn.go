package session

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/visible"
)

// ParseDSN reads a connection string as psql -d does: a URI, keywords and values, or the
// bare name of a database. What the string omits comes from the PG* variables, the
// service file and the password file. source says where the string comes from, for
// messages.
//
// ParseDSN honours the parameters that libpq knows, or drops them if they make no difference to the
// promise. It refuses those without which the connection would be weaker, and everything that libpq
// doesn't know, which pgconn would hand to the server as a setting.
//
// Each warn is called with what is ignored, and with what the user can do about it.
func ParseDSN(dsn, source string, warn ...func(message, hint string)) (*pgconn.Config, error) {
	bad := func(hint, format string, args ...any) error {
		return &Error{Kind: BadDSN, Hint: hint, err: fmt.Errorf("%s: "+format, append([]any{source}, args...)...)}
	}
	if mangled(dsn) {
		return nil, bad(howToWrite, "neither a URI, nor keyword=value pairs, nor a database's name (it is not shown, for there may be a password in it)")
	}
	if scheme := uriScheme(dsn); scheme != "" && scheme != "postgres://" && scheme != "postgresql://" {
		hint := ""
		if strings.Contains(strings.ToLower(scheme), "postg") {
			hint = "write postgresql:// instead"
		}
		return nil, bad(hint, "an address of %s… is not PostgreSQL's", scheme)
	}
	if dsn != "" && !isURI(dsn) && !strings.Contains(dsn, "=") {
		dsn = "dbname=" + quoteValue(dsn)
	}

	var from sources
	cfg, err := from.parse(dsn)
	if from.service != "" {
		source += ", " + from.service
	}
	if err != nil {
		return nil, bad("", "%s", parseFailure(err))
	}
	if part, variable := suspect(cfg, dsn); part != "" {
		source = cmp.Or(variable, source)
		hint := howToWrite
		if part == "database" {
			hint = howToEscape
		}
		return nil, bad(hint, "the %s looks like part of a connection string (it is not shown, for there may be a password in it)", part)
	}
	params := libpqEnv()
	maps.Copy(params, cfg.RuntimeParams)
	clear(cfg.RuntimeParams)

	if addrs := params["hostaddr"]; addrs != "" {
		if cfg, err = withHostAddr(&from, dsn, addrs, cfg); err != nil {
			return nil, bad("", "%s", parseFailure(err))
		}
	}
	if most, exceeded := keyMode(from.key); exceeded {
		return nil, bad(fmt.Sprintf("chmod %o %s", most, visible.ShellWord(from.key)), "the private key file %q has group or world access", from.key)
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if hint, err := applyParameter(cfg, name, params[name]); err != nil {
			return nil, bad(hint, "%s", err)
		}
	}
	// Server messages and keys are UTF-8, whatever the database's encoding is. Every
	// pooler knows this setting, unlike others.
	cfg.RuntimeParams["client_encoding"] = "UTF8"
	if from.ignored != "" {
		for _, w := range warn {
			w(fmt.Sprintf("the password file %q is ignored: it has group or world access", from.ignored), "chmod 600 "+visible.ShellWord(from.ignored))
		}
	}
	return cfg, nil
}

// applyParameter honours, drops or refuses a parameter that pgconn doesn't know, other than
// withHostAddr's. After a refusal it returns a hint, too.
func applyParameter(cfg *pgconn.Config, name, value string) (hint string, err error) {
	switch name {
	case "hostaddr":
	case "options":
		cfg.RuntimeParams[name] = value
	case "ssl_min_protocol_version", "ssl_max_protocol_version":
		return "", limitTLS(cfg, name, value)
	case "gssencmode":
		if value == "require" {
			return "use sslmode=require for an encrypted connection", errors.New("gssencmode=require is not supported")
		}
	case "sslcrl", "sslcrldir", "requirepeer", "replication", "scram_client_key", "scram_server_key", "requiressl":
		if value != "" && value != "0" {
			return "", fmt.Errorf("%s is not supported, and dropping it would be no favour", name)
		}
	default:
		if dropped(name) {
			break
		}
		if strings.Trim(name, lowerCase+"_") != "" {
			name = "(not shown: it may be part of a password)"
		}
		return "psql doesn't know it either; settings go into options=-cNAME=VALUE", fmt.Errorf("unknown connection parameter %s", name)
	}
	return "", nil
}

// howToWrite is the hint for a malformed string. It quotes nothing from the string, which may
// contain a password.
const howToWrite = "write postgresql://USER@HOST:PORT/DATABASE, or host=HOST port=PORT dbname=DATABASE user=USER; " +
	"a name with odd characters is dbname='NAME'"

// howToEscape is a hint for a database whose name looks like part of a connection string.
const howToEscape = howToWrite + "; if the database has that very name: postgresql://HOST/NAME, where it has %3A for a colon, " +
	"%40 for an @, %2F for a slash, and %3D for a ="

// mangled says whether a connection string is no URI, does not begin with a keyword, and
// is not the name of a database. If a mistyped URI were taken for a name, pglead would
// send it to some server and show it in every message, with its password.
func mangled(dsn string) bool {
	if isURI(dsn) || uriScheme(dsn) != "" {
		return false
	}
	name, _, pairs := strings.Cut(dsn, "=")
	if pairs {
		name = strings.TrimSpace(name)
	}
	return strings.ContainsAny(name, "/@:;\"") || strings.HasPrefix(name, "'") || strings.TrimSpace(name) != name ||
		strings.ContainsFunc(name, func(r rune) bool { return !visible.Rune(r) })
}

// suspect looks for a value, from the string, the variables or the service file, that seems to be a
// piece of a connection string by mistake. It returns which parameter has that value, and from
// which variable it comes, if from one.
func suspect(cfg *pgconn.Config, dsn string) (part, variable string) {
	isFrom := func(variable, value string) string {
		if !strings.Contains(os.Getenv(variable), value) {
			return ""
		}
		return variable
	}
	for _, host := range configHosts(cfg) {
		odd := strings.ContainsAny(host, "/@;='\"") || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || !visible.Rune(r) })
		if odd && !filepath.IsAbs(host) || credentials(host) {
			return "host", isFrom("PGHOST", host)
		}
	}
	switch {
	case credentials(cfg.Database) && !escaped(dsn, cfg.Database):
		return "database", isFrom("PGDATABASE", cfg.Database)
	case credentials(cfg.User):
		return "user", isFrom("PGUSER", cfg.User)
	}
	return "", ""
}

// credentials says whether a value looks like a URI, or like keywords with their values. Either may
// contain a password.
func credentials(value string) bool {
	_, behind, found := strings.Cut(value, ":")
	return found && strings.Contains(behind, "@") || strings.Contains(value, "://") || strings.Contains(strings.ToLower(value), "password=")
}

// escaped says whether the name of the database looks like part of a connection string only because
// of characters that the URI writes with percent signs. Nobody does so by mistake.
func escaped(dsn, database string) bool {
	_, rest, _ := strings.Cut(dsn, "://")
	_, path, _ := strings.Cut(rest, "/")
	path, _, _ = strings.Cut(path, "?")
	name, err := url.PathUnescape(path)
	return isURI(dsn) && err == nil && name == database && !credentials(path)
}

const lowerCase = "abcdefghijklmnopqrstuvwxyz"

// uriScheme is the beginning of a URI, such as jdbc:postgresql://. It is empty if dsn is no URI.
func uriScheme(dsn string) string {
	scheme, _, found := strings.Cut(dsn, "://")
	rest := strings.TrimLeft(strings.TrimPrefix(strings.ToLower(scheme), "jdbc:"), lowerCase)
	if !found || len(rest) == len(scheme) || strings.Trim(rest, lowerCase+"0123456789+.-") != "" {
		return ""
	}
	return scheme + "://"
}

// dropped says whether a parameter of libpq's has no effect here. Those of the first row the
// session sets itself, from the lease.
func dropped(name string) bool {
	switch name {
	case "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout", "application_name",
		"fallback_application_name", "client_encoding", "timezone", "load_balance_hosts", "sslcompression",
		"gsslib", "gssdelegation", "tty", "authtype", "sslkeylogfile",
		"oauth_issuer", "oauth_client_id", "oauth_client_secret", "oauth_scope":
		return true
	}
	return false
}

// libpqEnv reads the variables that libpq knows and pgconn doesn't.
// https://www.postgresql.org/docs/current/libpq-envars.html
func libpqEnv() map[string]string {
	params := map[string]string{}
	for variable, name := range map[string]string{
		"PGHOSTADDR":              "hostaddr",
		"PGREQUIREPEER":           "requirepeer",
		"PGSSLCRL":                "sslcrl",
		"PGSSLCRLDIR":             "sslcrldir",
		"PGGSSENCMODE":            "gssencmode",
		"PGREQUIRESSL":            "requiressl",
		"PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version",
		"PGSSLMAXPROTOCOLVERSION": "ssl_max_protocol_version",
	} {
		if value := os.Getenv(variable); value != "" {
			params[name] = value
		}
	}
	return params
}

// withHostAddr makes connections go to the addresses in addrs. The names of the hosts then serve
// only to verify certificates and to find passwords.
func withHostAddr(from *sources, dsn, addrs string, cfg *pgconn.Config) (*pgconn.Config, error) {
	if filepath.IsAbs(cfg.Host) {
		// No host was given: there is only the default socket's directory.
		named, err := from.parse(withParam(dsn, "host", addrs))
		if err != nil {
			return nil, err
		}
		clear(named.RuntimeParams)
		return named, nil
	}
	hosts := configHosts(cfg)
	list := strings.Split(addrs, ",")
	if len(list) != len(hosts) {
		return nil, fmt.Errorf("%d hosts, but %d hostaddr", len(hosts), len(list))
	}
	addressOf := map[string]string{}
	for i, host := range hosts {
		if list[i] != "" && net.ParseIP(list[i]) == nil {
			return nil, errors.New("hostaddr is not an IP address")
		}
		addressOf[host] = list[i]
	}
	resolve := cfg.LookupFunc
	cfg.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		if addr := addressOf[host]; addr != "" {
			return []string{addr}, nil
		}
		return resolve(ctx, host)
	}
	return cfg, nil
}

// configHosts lists the distinct hosts of cfg in their order.
func configHosts(cfg *pgconn.Config) []string {
	var hosts []string
	for _, f := range Hosts(cfg) {
		if !slices.Contains(hosts, f.Host) {
			hosts = append(hosts, f.Host)
		}
	}
	return hosts
}

func limitTLS(cfg *pgconn.Config, name, value string) error {
	versions := map[string]uint16{
		"tlsv1": tls.VersionTLS10, "tlsv1.1": tls.VersionTLS11, "tlsv1.2": tls.VersionTLS12, "tlsv1.3": tls.VersionTLS13,
	}
	version, ok := versions[strings.ToLower(value)]
	if !ok {
		return fmt.Errorf("%s: the versions are TLSv1, TLSv1.1, TLSv1.2 and TLSv1.3", name)
	}
	for _, f := range Hosts(cfg) {
		switch c := f.TLSConfig; {
		case c == nil:
		case name == "ssl_min_protocol_version":
			c.MinVersion = version
		default:
			c.MaxVersion = version
		}
	}
	return nil
}

func isURI(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// withParam adds a parameter to a connection string of either form.
func withParam(dsn, name, value string) string {
	if !isURI(dsn) {
		return dsn + " " + name + "=" + quoteValue(value)
	}
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	return dsn + separator + name + "=" + url.QueryEscape(value)
}

func quoteValue(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

// parseFailure is pgconn's reason without the connection string: pgconn quotes the string, and
// doesn't hide every password in it.
func parseFailure(err error) string {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return err.Error()
	}
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	// The URI parser quotes what it can't read, which may be a password.
	if strings.Contains(text, "failed to parse as URL") || isURI(parse.ConnString) && strings.Contains(text, "port") {
		return "the connection URI is malformed (a port is a number from 1 to 65535; in a password, characters such as " +
			"/ @ : # % are written %2F %40 %3A %23 %25)"
	}
	if strings.Contains(text, "failed to parse as keyword/value") {
		return "the connection string is neither a URI, nor keyword=value pairs, nor a database name"
	}
	if strings.Contains(text, "invalid port") {
		return "bad port: it is a number from 1 to 65535"
	}
	if strings.Contains(text, "sslmode is invalid") {
		return "bad sslmode: it is disable, allow, prefer, require, verify-ca or verify-full"
	}
	// pgconn quotes values, and after a ; or an @ may come the next parameter.
	if strings.ContainsAny(text, ";@") || credentials(text) {
		return "the connection string is malformed: parameters have spaces between them"
	}
	return text
}

// Target names server and database for messages: db.example:5432/app.
func Target(cfg *pgconn.Config) string {
	var servers []string
	for _, f := range Hosts(cfg) {
		server := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))
		if filepath.IsAbs(f.Host) {
			server = fmt.Sprintf("%s:%d", f.Host, f.Port)
		}
		if !slices.Contains(servers, server) {
			servers = append(servers, server)
		}
	}
	return strings.Join(servers, ",") + "/" + cmp.Or(cfg.Database, cfg.User)
}
