package hosts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testTimer: the timers of all hosts fire at one instant, and one host runs.
func (b *bench) testTimer(t *testing.T) {
	at := time.Now().Add(10 * time.Second).UTC().Format("2006-01-02 15:04:05 UTC")
	b.shell(t, `
		mkdir /etc/systemd/system/nightly.timer.d
		printf '[Timer]\nOnCalendar=\nOnCalendar=`+at+`\n' >/etc/systemd/system/nightly.timer.d/now.conf
		systemctl daemon-reload; systemctl start nightly.timer`)
	// The one that runs keeps its lock for --min-hold, and its service is up.
	states := map[string]int{}
	if !eventually(func() bool {
		clear(states)
		for _, h := range b.hosts {
			state, _ := h.try("systemctl", "show", "--property=ActiveState,Result,ExecMainStatus", "nightly.service")
			states[strings.ReplaceAll(state, "\n", " ")]++
		}
		return states["Result=success ExecMainStatus=75 ActiveState=inactive"] == len(b.hosts)-1 &&
			states["Result=success ExecMainStatus=0 ActiveState=activating"] == 1
	}) {
		t.Errorf("the services are %v", states)
	}
	if ran := b.lines("nights"); len(ran) != 1 {
		t.Errorf("the timers of all hosts fired once, and the job ran on %q", ran)
	}
}

// Of each host, cron starts this many jobs at each full minute, each under a
// key of its own, for so many minutes.
const (
	cronJobs    = 30
	cronMinutes = 2
)

// startCron gives all hosts one crontab, which fires from the next full minute
// on.
func (b *bench) startCron() {
	tab := bytes.NewBuffer(must(os.ReadFile(filepath.Join(b.shared, "pglead.env")))(b.t))
	for i := range cronJobs {
		fmt.Fprintf(tab, "* * * * * pglead run --key fire/%d --min-hold 30s -q -E 0 -- /usr/local/bin/fire %d\n", i, i)
	}
	b.write("crontab", tab.String(), 0o644)
	b.shell(b.t, "systemctl is-active cron; crontab /shared/crontab")
	// cron reads crontabs at each full minute, before it starts the jobs.
	next := time.Now().UTC().Truncate(time.Minute)
	for range cronMinutes {
		next = next.Add(time.Minute)
		b.minutes = append(b.minutes, next.Format("15:04"))
	}
}

// testCron: each fire ran on one host.
func (b *bench) testCron(t *testing.T) {
	last := b.minutes[len(b.minutes)-1]
	for began := time.Now(); time.Since(began) < (cronMinutes+1)*time.Minute; time.Sleep(time.Second) {
		if now := time.Now().UTC(); now.Format("15:04") == last && now.Second() > 10 {
			break
		}
	}
	b.shell(t, "crontab -r")
	count := func() map[string]int {
		times := map[string]int{}
		for _, fire := range b.lines("fires") {
			times[fire]++
		}
		return times
	}
	if !eventually(func() bool { return len(count()) >= cronJobs*len(b.minutes) }) {
		t.Errorf("%d of %d fires ran", len(count()), cronJobs*len(b.minutes))
	}
	// The others of each fire have been refused by then, or would run next.
	b.shell(t, `while pgrep -x pglead >/dev/null && pgrep -f 'key fir[e]/' >/dev/null; do sleep 0.1; done`)
	times := count()
	for fire, n := range times {
		_, minute, _ := strings.Cut(fire, " ")
		if n != 1 || !slices.Contains(b.minutes, minute) {
			t.Errorf("fire %s ran %d times", fire, n)
		}
	}
	t.Logf("%d fires on %d hosts, each ran once", len(times), len(b.hosts))
}
