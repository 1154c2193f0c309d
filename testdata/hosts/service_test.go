package hosts

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// leader waits until the n-th start of the scheduler and returns its host.
func (b *bench) leader(t *testing.T, n int) *host {
	t.Helper()
	var starts []string
	if !eventually(func() bool {
		starts = nil
		for _, line := range b.lines("log") {
			if name, ok := strings.CutSuffix(line, " start"); ok {
				starts = append(starts, name)
			}
		}
		return len(starts) >= n
	}) {
		t.Fatalf("nobody leads for the time number %d:\n%s", n, strings.Join(b.lines("log"), "\n"))
	}
	return b.hosts[slices.IndexFunc(b.hosts, func(h *host) bool { return h.name == starts[n-1] })]
}

func (b *bench) noOverlap(t *testing.T) {
	t.Helper()
	if log := strings.Join(b.lines("log"), "\n"); strings.Contains(log, "overlap") {
		t.Errorf("two ran at once:\n%s", log)
	}
}

// terms is how many TERM the first run of the scheduler on a host has got
// before it ended by itself.
func (b *bench) terms(t *testing.T, h *host) int {
	t.Helper()
	b.noOverlap(t)
	lines := b.lines("log")
	end := slices.Index(lines, h.name+" end")
	if end < 0 {
		t.Fatalf("the scheduler on %s did not end by itself:\n%s", h.name, strings.Join(lines, "\n"))
	}
	n := 0
	for _, l := range lines[:end] {
		if l == h.name+" term" {
			n++
		}
	}
	return n
}

// testService: a service that is up on all hosts leads on one.
func (b *bench) testService(t *testing.T) {
	b.shell(t, "systemctl start scheduler")
	first := b.leader(t, 1)
	for _, h := range b.hosts {
		want := "standing by, waiting.*; held by " + first.name + ` \(scheduler, process `
		if h == first {
			want = "leading since "
		}
		var status string
		if !eventually(func() bool {
			status, _ = h.try("systemctl", "show", "--property=StatusText,ActiveState", "scheduler")
			return strings.Contains(status, "ActiveState=active") && regexp.MustCompile("StatusText="+want).MatchString(status)
		}) {
			t.Errorf("%s: systemd knows of %s, want %s", h.name, status, want)
		}
	}

	// systemctl stop waits for the end of the service.
	first.run(t, "systemctl", "stop", "scheduler")
	if n := b.terms(t, first); n != 1 {
		t.Errorf("KillMode=mixed: %d TERM", n)
	}
	stopped := func(h *host) {
		t.Helper()
		if state := h.run(t, "systemctl", "show", "--property=ActiveState,Result", "scheduler"); !strings.Contains(state, "ActiveState=inactive") || !strings.Contains(state, "Result=success") {
			t.Errorf("a stopped service is %s", state)
		}
	}
	stopped(first)

	second := b.leader(t, 2)
	second.run(t, "sh", "-ec", "printf '[Service]\nKillMode=control-group\n' >/etc/systemd/system/scheduler.service.d/kill.conf; systemctl daemon-reload; systemctl stop scheduler")
	n := b.terms(t, second)
	if n < 1 {
		t.Errorf("KillMode=control-group: %d TERM", n)
	}
	t.Logf("KillMode=control-group: %d TERM", n)
	stopped(second)

	third := b.leader(t, 3)
	first.run(t, "systemctl", "start", "scheduler")
	// Up, and in line: a start that fails would end at once.
	before := third.run(t, "systemctl", "show", "--property=MainPID", "scheduler")
	third.run(t, "systemctl", "kill", "--signal=KILL", "--kill-who=main", "scheduler")
	b.leader(t, 4)
	if !eventually(func() bool {
		now, _ := third.try("systemctl", "show", "--property=MainPID,ActiveState", "scheduler")
		return strings.Contains(now, "ActiveState=active") && !strings.Contains(now, before)
	}) {
		t.Error("Restart=always did not restart a pglead that was killed")
	}
	b.noOverlap(t)
	second.run(t, "systemctl", "start", "scheduler")
}

// testHostDies: another leads when the leader's host is gone.
func (b *bench) testHostDies(t *testing.T) {
	starts := 0
	for _, line := range b.lines("log") {
		if strings.HasSuffix(line, " start") {
			starts++
		}
	}
	leader := b.leader(t, starts)
	leader.kill()
	next := b.leader(t, starts+1)
	if next == leader {
		t.Errorf("%s leads after its death", next.name)
	}
	b.noOverlap(t)
}
