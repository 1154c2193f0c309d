package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg"
)

// Nothing that another session or the server says is to be trusted: these are
// strangers, and what they may not do.

// strange is a server for one test, and for whom it has nothing but strangers.
type strange struct {
	t      *testing.T
	server *localpg.Server
}

func newStrange(t *testing.T) strange {
	t.Helper()
	return strange{t, throwaway(t, nil)}
}

// session is one of a stranger, who has done what these statements say; what the
// last of them waits for is not waited for.
func (s strange) session(role string, waits bool, statements ...string) *pgconn.PgConn {
	s.t.Helper()
	config, err := pgconn.ParseConfig(s.server.DSN("postgres"))
	if err != nil {
		s.t.Fatal(err)
	}
	if role != "" {
		config.User = role
	}
	conn, err := pgconn.ConnectConfig(s.t.Context(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, sql := range statements {
		if waits && i == len(statements)-1 {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = conn.Exec(context.Background(), sql).ReadAll()
			}()
			s.t.Cleanup(func() {
				_ = conn.Conn().Close()
				<-ended
			})
			return conn
		}
		if _, err := conn.Exec(s.t.Context(), sql).ReadAll(); err != nil {
			s.t.Fatalf("%s: %v", sql, err)
		}
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// soon is more than any command of these tests takes, on a machine that is busy.
const soon = 40 * time.Second

// pglead runs to its end, which has to come soon.
func (s strange) pglead(environ []string, args ...string) (status int, stdout, stderr string) {
	s.t.Helper()
	return s.program(environ, "pglead", args...)
}

func (s strange) program(environ []string, name string, args ...string) (status int, stdout, stderr string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	whole := command(s.t, args...)
	cmd := exec.CommandContext(ctx, name, args...)
	if name == "pglead" {
		cmd.Path, cmd.Err = whole.Path, nil
	}
	cmd.Env, cmd.Dir = slices.Concat(whole.Env, []string{"PGHOST=" + s.server.Socket}, environ), whole.Dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		s.t.Errorf("pglead %q takes longer than %v", args, soon)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// locking is SQL that takes a key's lock, with this comment before it.
func locking(comment, key string) string {
	return fmt.Sprintf("/*pglead %s*/ SELECT pg_advisory_lock(%s)", comment, lockOf(key))
}

// TestHostileNumbers: a number in a comment is no reason to reckon for ever, nor
// to be deaf meanwhile.
func TestHostileNumbers(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	s := newStrange(t)
	const most = "'1000000000000'"
	s.session("", false, locking("command='c',host='h',key='x',lease='99999999h',pid="+most+",scheme='siphash24',since='9999-12-31T23:59:59-23:59',slot="+most+",slots="+most+",token='-7',user='u'", "numbers"))
	s.session("", false, locking("host='h',key='x',pid='1',lease='2000000h',delay='2000000h'", "patience"))
	s.session("", false, locking("host='h',key='x',pid='-1',lease='-3s',slots='-9223372036854775808',slot='-1',since='0000-01-01T00:00:00%2B24:00'", "numbers/2"))
	var keys []string
	for i := range 200 {
		keys = append(keys, fmt.Sprintf("k%d", i))
	}
	s.session("", false, "/*pglead slots='1000',key='"+url.QueryEscape(strings.Join(keys, "\n"))+"'*/ SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 3000) AS n")
	for _, tt := range []struct {
		status int
		args   []string
	}{
		{0, []string{"ls"}},
		{0, []string{"ls", "-o", "json"}},
		{0, []string{"ls", "-o", "prometheus"}},
		{0, []string{"who", "numbers"}},
		{0, []string{"who", "numbers/2", "-o", "json"}},
		{75, []string{"run", "--key", "numbers", "--", "true"}},
		{75, []string{"run", "--key", "numbers", "--wait", "0.5", "--", "true"}},
		{75, []string{"stepdown", "numbers", "--wait", "0.5"}},
		{75, []string{"stepdown", "patience", "--wait", "0.5"}},
		{0, []string{"run", "--key", "other", "--", "true"}},
	} {
		if status, stdout, stderr := s.pglead(nil, tt.args...); status != tt.status {
			t.Errorf("%q: exit status %d, want %d: %.200s%s", tt.args, status, tt.status, stdout, stderr)
		}
	}
	for _, args := range [][]string{{"run", "--key", "numbers", "--wait", "forever", "--", "true"}, {"lead", "--first-delay", "0", "--key", "numbers", "--", "true"}} {
		shown, end := s.living(args...)
		if !strings.Contains(shown, "h (c, process 0 of u)") {
			t.Errorf("%q shows %q", args, shown)
		}
		if err := end(syscall.SIGTERM); err == nil || !strings.Contains(err.Error(), "terminated") {
			t.Errorf("%q ends by SIGTERM with %v", args, err)
		}
	}
}

// living runs pglead on a terminal, up to a line that says who has the lock.
func (s strange) living(args ...string) (shown string, end func(syscall.Signal) error) {
	s.t.Helper()
	cmd := command(s.t, args...)
	cmd.Env = append(cmd.Env, "PGHOST="+s.server.Socket)
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 500})
	if err != nil {
		s.t.Fatal(err)
	}
	timer := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	var out []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(out, []byte("held by")) || !bytes.HasSuffix(out, []byte("\x1b[K")) {
		n, err := file.Read(buf)
		out = append(out, buf[:n]...)
		if err != nil {
			s.t.Errorf("pglead %q shows %q, and ends", args, out)
			break
		}
	}
	return string(out), func(sig syscall.Signal) error {
		defer timer.Stop()
		defer file.Close()
		_ = cmd.Process.Signal(sig)
		go func() { // until the terminal is closed
			for {
				if _, err := file.Read(buf); err != nil {
					return
				}
			}
		}()
		return cmd.Wait()
	}
}

// evil is a name that has an effect on a terminal, ends lines, and forges one.
const evil = "x\x1b[2J\x07\nforged: y\r\t\u202e\u2066\u009b31m\u0085\u2028\x7fz"

// plain fails the test for what is not to be seen in a text, and returns its lines.
func plain(t *testing.T, what, text string) []string {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s is no UTF-8: %q", what, text)
	}
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%s has %U in it: %q", what, r, text)
			break
		}
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "forged") {
			t.Errorf("%s has a line that a stranger wrote: %q", what, text)
		}
	}
	return lines
}

// TestHostileTexts: nothing that others wrote has an effect on whoever reads it,
// or is taken for a line of ours.
func TestHostileTexts(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	s := newStrange(t)
	name := `"` + evil + `"`
	for _, sql := range []string{
		"CREATE ROLE " + name + " LOGIN", "CREATE DATABASE " + name, "REVOKE CONNECT ON DATABASE " + name + " FROM PUBLIC",
		"GRANT pg_read_all_stats TO " + name,
	} {
		if _, err := s.server.Query("postgres", sql); err != nil {
			t.Fatal(err)
		}
	}
	text := url.QueryEscape(evil) + "%ff%C3"
	comment := "command='" + text + "',host='" + text + "',key='evil/1%0A" + text + "',pid='1',since='2020-01-01T00:00:00Z',token='7',user='" + text + "'"
	named := "SET application_name = 'pglead:evil/1@" + evil + "'"
	s.session(evil, false, named, locking(comment, "evil/1"))
	s.session(evil, false, named, locking(comment+",scheme='int'", "evil/2")) // for another key of its number
	s.session(evil, true, named, locking(comment, "evil/1"))

	for _, tt := range []struct {
		status         int
		stdout, stderr int // lines, or -1
		environ        string
		args           string
	}{
		{status: 0, stdout: 3, args: "ls"},
		{status: 0, stdout: 3, args: "ls -o wide --all-databases"},
		{status: 0, stdout: 1, args: "who evil/1"},
		{status: 0, stdout: 1, args: "who evil/2"},
		{status: 0, stdout: 1, args: "stepdown evil/1"},
		{status: 75, stdout: 2, args: "stepdown evil/1 --wait 0.2"},
		{status: 75, stderr: 1, args: "run --key evil/1 -- true"},
		{status: 75, stderr: 1, args: "run --key evil/2 -- true"},
		{status: 75, stderr: 3, args: "run -v --key evil/1 --wait 0.5 -- true", environ: "CI=1"},
		{status: 75, stderr: 1, args: "run --log-format json --key evil/1 -- true"},
		{status: 75, stderr: 2, args: "run --log-format json --key evil/1 --wait 0.5 -- true", environ: "CI=1"},
		{status: 0, stdout: 1, args: "ls -o json"},
		{status: 0, stdout: 1, args: "who evil/1 -o json"},
		{status: 0, stdout: 12, args: "ls -o prometheus --all-databases"},
		{status: 0, stdout: 1, args: "ls", environ: "PGDATABASE=" + evil},
		{status: 1, stdout: 1, args: "who free", environ: "PGDATABASE=" + evil},
		{status: 1, stdout: 1, args: "stepdown free", environ: "PGDATABASE=" + evil},
		{status: 0, stdout: -1, args: "doctor", environ: "PGDATABASE=" + evil},
		{status: 0, stdout: 1, args: "doctor -o json", environ: "PGDATABASE=" + evil},
		{status: 77, stderr: 2, args: "ls", environ: "PGDATABASE=" + evil + "\x00PGUSER=" + evil},
		{status: 77, stderr: 2, args: "run --key k -- true", environ: "PGDATABASE=" + evil + "x"},
		{status: 77, stderr: 1, args: "run --log-format json --key k -- true", environ: "PGDATABASE=" + evil + "x"},
	} {
		status, stdout, stderr := s.pglead(strings.Split(tt.environ, "\x00"), strings.Fields(tt.args)...)
		what := fmt.Sprintf("%s (%q)", tt.args, tt.environ)
		if status != tt.status {
			t.Errorf("%s: exit status %d, want %d: %s%s", what, status, tt.status, stdout, stderr)
		}
		for stream, is := range map[string]struct {
			text string
			want int
		}{"standard output": {stdout, tt.stdout}, "standard error": {stderr, tt.stderr}} {
			lines := 0
			if is.text != "" {
				lines = len(plain(t, what+": "+stream, is.text))
			}
			if lines != is.want && is.want >= 0 {
				t.Errorf("%s: %d lines of %s, want %d: %s", what, lines, stream, is.want, is.text)
			}
			for line := range strings.Lines(is.text) {
				if strings.Contains(tt.args, "json") && !json.Valid([]byte(line)) {
					t.Errorf("%s: no JSON: %s", what, line)
				}
			}
		}
		if strings.Contains(tt.args, "prometheus") {
			parser := expfmt.NewTextParser(model.UTF8Validation)
			if _, err := parser.TextToMetricFamilies(strings.NewReader(stdout)); err != nil {
				t.Errorf("%v in %s", err, stdout)
			}
		}
	}

	// In JSON it is, for programs, what it was.
	_, stdout, _ := s.pglead(nil, "who", "evil/1", "-o", "json")
	var locks []struct{ Holders []struct{ Role, Host string } }
	if err := json.Unmarshal([]byte(stdout), &locks); err != nil || len(locks) != 1 || len(locks[0].Holders) != 1 ||
		locks[0].Holders[0].Role != evil || !strings.HasPrefix(locks[0].Holders[0].Host, evil) {
		t.Errorf("%v: %+v", err, locks)
	}

	shown, end := s.living("run", "--key", "evil/1", "--wait", "forever", "--", "true")
	_ = end(syscall.SIGTERM)
	// The terminal's own commands are these.
	plain(t, "the status line", regexp.MustCompile(`\r|\x1b\[K`).ReplaceAllString(shown, ""))

	// A holder names the host that asks it to step down.
	holder := command(t, "run", "--key", "asked", "--", "sh", "-c", "trap 'exit 0' TERM; echo; while :; do sleep 0.01; done")
	holder.Env = append(holder.Env, "PGHOST="+s.server.Socket)
	var said bytes.Buffer
	holder.Stderr = &said
	start(t, holder)
	ended := make(chan error, 1)
	go func() { ended <- holder.Wait() }()
	asker := s.session(evil, false)
	for asking := true; asking; {
		name := strings.ReplaceAll("pglead stepdown by x"+evil, "'", "''")
		ask := fmt.Sprintf("SELECT set_config('application_name', '%s', false), pg_try_advisory_lock(%s)", name, advisory.StepDownOf(lockOf("asked")))
		if _, err := asker.Exec(t.Context(), ask).ReadAll(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			asking = false
			if err != nil {
				t.Error(err)
			}
		case <-time.After(50 * time.Millisecond):
		}
	}
	if lines := plain(t, "the holder's message", said.String()); len(lines) != 1 || !strings.HasPrefix(lines[0], "pglead: asked: asked to step down by x") {
		t.Errorf("it says %q", lines)
	}
}

// TestBothModes: a session that has a lock in both modes is one holder of it, and
// one series.
func TestBothModes(t *testing.T) {
	s := newStrange(t)
	s.session("", false, "/*pglead command='c',host='h',key='both',pid='1',since='2020-01-01T00:00:00Z',user='u'*/ SELECT pg_advisory_lock_shared("+lockOf("both").String()+"), pg_advisory_lock("+lockOf("both").String()+")")
	_, stdout, stderr := s.pglead(nil, "ls", "-o", "prometheus")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(stdout))
	if err != nil || stderr != "" {
		t.Fatalf("%v in %s%s", err, stdout, stderr)
	}
	for name, want := range map[string]int{"pglead_lock_holders": 1, "pglead_lock_waiters": 1, "pglead_lock_held_seconds": 1} {
		if got := len(families[name].GetMetric()); got != want {
			t.Errorf("%s has %d samples, want %d:\n%s", name, got, want, stdout)
		}
	}
	if got := families["pglead_lock_holders"].GetMetric()[0].GetGauge().GetValue(); got != 1 {
		t.Errorf("%v holders", got)
	}
	if _, stdout, _ := s.pglead(nil, "who", "both"); strings.Count(stdout, "\n") != 1 || strings.Contains(stdout, "shared") {
		t.Errorf("who says:\n%s", stdout)
	}
}

// TestHostileAnnouncement: what another role gives out costs a takeover a lease at most.
func TestHostileAnnouncement(t *testing.T) {
	s := newStrange(t)
	s.session("", false, "CREATE ROLE other LOGIN")
	const lease = 3 * time.Second
	id := lockOf("announced").String()
	holder := s.session("other", false, "SELECT pg_advisory_lock("+id+")")
	waiter := command(t, "run", "--key", "announced", "--lease", lease.String(), "--wait", "forever", "--", "echo", "it runs")
	waiter.Env = append(waiter.Env, "PGHOST="+s.server.Socket)
	began := make(chan time.Time, 1)
	go func() {
		if !eventually(func() bool {
			return stage{server: s.server}.waiters("announced") == 1
		}) {
			t.Error("nobody stands in line")
		}
		for _, payload := range []string{"started 1 86400000 86400000", "started 9223372036854775807 9223372036854775807 9223372036854775807"} {
			if _, err := holder.Exec(context.Background(), fmt.Sprintf("NOTIFY %q, '%s'", "pglead.1."+id, payload)).ReadAll(); err != nil {
				t.Error(err)
			}
		}
		began <- time.Now()
		_ = holder.Close(context.Background())
	}()
	defer time.AfterFunc(soon, func() { _ = waiter.Process.Kill() }).Stop()
	line, _ := start(t, waiter)
	const slack = 2 * time.Second // for a busy machine, as in the torture
	if took := time.Since(<-began); line != "it runs" || took > lease+slack {
		t.Errorf("%q after %v", line, took)
	}
	if err := waiter.Wait(); err != nil {
		t.Error(err)
	}
}
