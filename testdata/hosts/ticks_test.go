package hosts

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// ticking are three hosts whose crons fire at each full minute of clocks that are apart:
// at :35, :00 and :25 of the server's. Two jobs are to succeed once a minute: "brief"
// is given up if it can't start, "patient" waits.
type ticking struct {
	*bench
	first int // the tick that is the first to count
}

// skew is the number of seconds by which a host's clock is ahead of the server's. Half a
// tick is the most that --once-per takes.
func (h *host) skew() int { return map[string]int{"delta": 25, "epsilon": 0, "zeta": -25}[h.name] }

// ticks is how many are counted.
const ticks = 12

// TestTicks has hosts whose clocks are apart run jobs once a minute, through failures, an
// outage and the death of a host: each tick has one success.
func TestTicks(t *testing.T) {
	if missing := missing(); missing != "" {
		if os.Getenv("CI") != "" {
			t.Fatal("needs ", missing)
		}
		t.Skip("NOT TESTED: --once-per by the crons of three machines, which needs ", missing)
	}
	b := &ticking{bench: boot(t, debian(t), "delta", "epsilon", "zeta")}
	b.setClocks(t)
	mortal := relayTo(t, "127.0.0.1:"+b.port)
	b.startJobs(t, map[string]string{"delta": strings.ReplaceAll(b.dsn(), ":"+b.port+"/", ":"+mortal.port+"/")})

	b.await(t, 1, "brief", "end")
	b.await(t, 1, "patient", "end")
	b.fail(t, 2, "delta")
	b.await(t, 3, "brief", "end")
	b.await(t, 3, "patient", "end")
	b.outage(t, 4)
	b.await(t, 6, "brief", "delta begin")
	b.await(t, 6, "patient", "delta begin")
	mortal.die()
	b.hosts[0].kill()
	b.await(t, 8, "brief", "end")
	b.await(t, 8, "patient", "end")
	b.fail(t, 9, "epsilon")
	b.await(t, ticks-1, "brief", "end")
	b.await(t, ticks-1, "patient", "end")
	b.await(t, ticks-1, "brief", "zeta exit") // the last to come
	b.await(t, ticks-1, "patient", "zeta exit")
	b.check(t)
}

// setClocks sets the hosts' clocks, as far as cron and pglead see them.
func (b *ticking) setClocks(t *testing.T) {
	t.Helper()
	run(t, "cc", "-shared", "-fPIC", "-O2", "-o", filepath.Join(b.shared, "clockshim.so"), top+"/testdata/clockshim/clockshim.c")
	buildSkewed(t, filepath.Join(b.shared, "pglead"))
	for _, h := range b.hosts {
		h.run(t, "sh", "-ec", fmt.Sprintf(`
			echo %d >/etc/skew
			mkdir /etc/systemd/system/cron.service.d
			printf '[Service]\nEnvironment=LD_PRELOAD=/shared/clockshim.so CLOCKSHIM=/etc/skew\n' >/etc/systemd/system/cron.service.d/clock.conf
			systemctl daemon-reload; systemctl restart cron`, h.skew()))
	}
}

// buildSkewed builds a pglead whose wall clock is ahead by so many seconds as the
// variable SKEW says, and whose other clocks are right.
func buildSkewed(t *testing.T, file string) {
	t.Helper()
	dir := t.TempDir()
	root := must(exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output())(t)
	place := filepath.Join(strings.TrimSpace(string(root)), "src/time")
	text := string(must(os.ReadFile(filepath.Join(place, "time.go")))(t))
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(text, reads) != 1 {
		t.Fatal("this Go reads the clock in another way: see time.Now")
	}
	overlay := map[string]string{}
	for name, text := range map[string]string{
		"time.go": strings.Replace(text, reads, reads+"\tsec += skew\n", 1),
		"skew.go": `package time

import "syscall"

var skew = func() int64 {
	text, _ := syscall.Getenv("SKEW")
	n, _ := atoi(text)
	return int64(n)
}()
`,
	} {
		overlay[filepath.Join(place, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := must(json.Marshal(map[string]any{"Replace": overlay}))(t)
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", file, ".")
	cmd.Dir, cmd.Env = top, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
}

// startJobs makes the ledger and gives the hosts their crontabs. Some have a connection
// string of their own.
func (b *ticking) startJobs(t *testing.T, dsns map[string]string) {
	t.Helper()
	b.write("fire", `#!/bin/sh
key=$1; shift
tick=$((($(date +%s) + SKEW) / 60))
say() { echo "$key $tick $(hostname) $*" >>/shared/ticks; }
say fired at $((($(date +%s) + SKEW) % 60))
/shared/pglead run --key $key --once-per minute -q "$@" -- /shared/job $key $tick
say exit $?
`, 0o755)
	b.write("job", `#!/bin/sh
say() { echo "$key $tick $(hostname) $*" >>/shared/ticks; }
key=$1 tick=$2
exec 9>>/shared/running.$key
flock -n 9 || say overlap
say begin
sleep 5
if [ -e /shared/fail.$(hostname) ]; then say failed; exit 1; fi
say end
`, 0o755)
	b.hosts[1].run(t, "env", "PGLEAD_DSN="+b.dsn(), "/shared/pglead", "ledger", "install")
	for _, seconds := range []string{"45", "-45"} {
		out, err := b.hosts[1].try("env", "PGLEAD_DSN="+b.dsn(), "SKEW="+seconds, "/shared/pglead", "run", "--key", "wrong", "--once-per", "minute", "--", "echo", "never")
		if err == nil || !strings.Contains(out, "this machine's clock is 45s ") || strings.Contains(out, "never") {
			t.Errorf("with a clock that is ahead by %s s: %v: %s", seconds, err, out)
		}
	}
	for _, h := range b.hosts {
		dsn := dsns[h.name]
		if dsn == "" {
			dsn = b.dsn()
		}
		b.write("crontab", fmt.Sprintf("PGLEAD_DSN=%s\nSKEW=%d\n* * * * * /shared/fire brief\n* * * * * /shared/fire patient --wait 50s\n", dsn, h.skew()), 0o600)
		h.run(t, "crontab", "/shared/crontab")
	}
	const second = 2 // of the full minutes to come, since cron reads its tables once a minute
	b.first = int(time.Now().Unix()/60) + second
}

// await waits until a tick has an event of a key.
func (b *ticking) await(t *testing.T, tick int, key, event string) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(50 * time.Millisecond) {
		if len(b.events(tick, key, event)) > 0 {
			return
		}
	}
	t.Fatalf("tick %d of %s never has: %s\n%s", tick, key, event, b.story())
}

// events are those of a key's tick that contain a text, each with its host first.
func (b *ticking) events(tick int, key, text string) (found []string) {
	for _, line := range b.lines("ticks") {
		event, ok := strings.CutPrefix(line, fmt.Sprintf("%s %d ", key, b.first+tick))
		if ok && strings.Contains(event, text) {
			found = append(found, event)
		}
	}
	return found
}

func (b *ticking) story() string {
	return fmt.Sprintf("tick 0 is %d\n%s", b.first, strings.Join(b.lines("ticks"), "\n"))
}

// fail has a host's jobs of a tick fail.
func (b *ticking) fail(t *testing.T, tick int, host string) {
	t.Helper()
	b.write("fail."+host, "", 0o600)
	b.await(t, tick, "brief", host+" failed")
	b.await(t, tick, "patient", host+" failed")
	if err := os.Remove(filepath.Join(b.shared, "fail."+host)); err != nil {
		t.Fatal(err)
	}
}

// outage has the server be away when two of the hosts fire.
func (b *ticking) outage(t *testing.T, tick int) {
	t.Helper()
	if err := b.server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"delta", "epsilon"} {
		b.await(t, tick, "brief", host+" exit 69")
		b.await(t, tick, "patient", host+" fired")
	}
	if err := b.server.StartLogged(); err != nil {
		t.Fatal(err)
	}
}

// check looks at what the hosts have written, and at the ledger.
func (b *ticking) check(t *testing.T) {
	t.Helper()
	for _, key := range []string{"brief", "patient"} {
		for tick := range ticks {
			if ends := b.events(tick, key, " end"); len(ends) != 1 {
				t.Errorf("tick %d of %s has %d successes: %q", tick, key, len(ends), ends)
			}
			if again := b.events(tick, key, "overlap"); len(again) > 0 {
				t.Errorf("tick %d of %s: two at once: %q", tick, key, again)
			}
			for _, event := range b.events(tick, key, "fired at ") {
				_, at, _ := strings.Cut(event, "fired at ")
				if second, err := strconv.Atoi(at); err != nil || second > 20 {
					t.Errorf("tick %d of %s: %s, not at the full minute of its clock", tick, key, event)
				}
			}
		}
		got := b.ask(t, fmt.Sprintf("SELECT count(*) FILTER (WHERE outcome = 'failed'), count(*) FILTER (WHERE outcome = 'lost'), count(*) FILTER (WHERE outcome NOT IN ('ok', 'failed', 'lost')) FROM pglead.run WHERE key = '%s'", key))
		if !slices.Equal(got, []string{"2", "1", "0"}) {
			t.Errorf("%s: of failed, lost and other runs the ledger has %v", key, got)
		}
	}
	// The hosts that did what the first one could not.
	for tick, want := range map[int]map[string]string{
		2: {"brief": "epsilon", "patient": "epsilon"}, 4: {"brief": "zeta", "patient": ""},
		6: {"brief": "epsilon", "patient": "epsilon"}, 9: {"brief": "zeta", "patient": "zeta"},
	} {
		for key, host := range want {
			if ends := b.events(tick, key, " end"); !strings.HasPrefix(strings.Join(ends, ""), host) {
				t.Errorf("tick %d of %s: %q, want %s", tick, key, ends, host)
			}
		}
	}
	if t.Failed() {
		t.Log(b.story())
	}
}

func (b *ticking) ask(t *testing.T, sql string) []string {
	t.Helper()
	return must(b.server.Query("postgres", sql))(t)
}

// relay is a way to a server that can fall silent as that of a machine does which is
// dead: nothing comes through any more, and nobody is told.
type relay struct {
	port string
	mu   sync.Mutex
	dead bool
}

func relayTo(t *testing.T, address string) *relay {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	r := &relay{port: port}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				_ = near.Close()
				continue
			}
			go r.pass(near, far)
			go r.pass(far, near)
		}
	}()
	return r
}

// pass passes on what one side says, and its end.
func (r *relay) pass(from, to net.Conn) {
	_, _ = io.Copy(writer{r, to}, from)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.dead {
		_ = from.Close()
		_ = to.Close()
	}
}

func (r *relay) die() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
}

// writer drops what comes after the death.
type writer struct {
	r  *relay
	to net.Conn
}

func (w writer) Write(p []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.r.dead {
		return len(p), nil
	}
	return w.to.Write(p)
}
