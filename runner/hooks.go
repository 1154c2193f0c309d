package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
)

// Hooks are shell commands for alarms. After Acquired comes either Lost or Released, unless this
// process is killed. They run one after the other, in parallel with everything else. This process
// waits for them only at its end, after the lock is released.
type Hooks struct{ Acquired, Lost, Released string }

// hookMost is how long a hook may take before it is killed with all that it started.
// systemd allows 90 s for a whole stop.
const hookMost = 10 * time.Second

// wholeHookMost is how long this process waits for a hook and for the end of what it leaves
// running. If the hook or its leftovers can't be killed by then, this process goes on without them.
const wholeHookMost = 2 * hookMost

// awaitHooks waits for the hooks at this process's end, and says how long that may take.
func (p *process) awaitHooks(o lock.Observer) {
	o.SayAlive(time.Duration(p.hooksLeft.Load()) * wholeHookMost)
	if p.lastHook != nil {
		<-p.lastHook
	}
}

// hookLost starts the hook for a loss.
func (r *run) hookLost(reason error) { r.hook("lost", r.cfg.Hooks.Lost, reason) }

// hook starts the event's hook, if there is one. It has the command's environment, with the event
// in PGLEAD_EVENT and the reason for a loss in PGLEAD_REASON. Its output goes to standard error.
func (r *run) hook(event, command string, reason error) {
	if command == "" {
		return
	}
	env := append(r.environment(), "PGLEAD_EVENT="+event)
	if reason != nil {
		env = append(env, "PGLEAD_REASON="+reason.Error())
	}
	r.queueHook(env, command, func(what string) { r.log.Warn(fmt.Sprintf("--on-%s: %s", event, what), "event", "hook") })
}

// mostQueuedHooks limits the hooks that wait for their turn. While a lock comes and goes all the
// time and the hooks are slow, the alarms would come later and later, and this process could not
// end.
const mostQueuedHooks = 8

// queueHook runs a hook after those before it. A hook may move an address, and the last one has to
// win: so if too many wait, the oldest are left out.
func (p *process) queueHook(env []string, command string, warn func(what string)) {
	before, done := p.lastHook, make(chan struct{})
	p.lastHook = done
	p.hooksLeft.Add(1)
	go func() {
		defer close(done)
		defer p.hooksLeft.Add(-1)
		if before != nil {
			<-before
		}
		if later := p.hooksLeft.Load() - 1; later >= mostQueuedHooks {
			warn(fmt.Sprintf("left out, since %d later hooks wait", later))
			return
		}
		if err := p.runHook(env, command, warn); err != nil {
			warn(err.Error())
		}
	}()
}

// runHook runs a hook to its end, under its own guard, which kills it after hookMost. It calls warn
// for what the guard reports meanwhile.
func (p *process) runHook(env []string, command string, warn func(what string)) error {
	shell, err := child.Lookup("sh")
	if err != nil {
		return err
	}
	g, err := p.parent.StartGuard(nil)
	if err != nil {
		return err
	}
	c, err := g.StartCommand(context.Background(), child.Spec{
		// The hook doesn't share the command's standard input and output.
		Path: shell, Args: []string{"sh", "-c", "exec </dev/null >&2\n" + command},
		Env: env, Deadline: boottime.Now().Add(hookMost),
	})
	if err != nil {
		return err
	}
	defer time.AfterFunc(hookMost, c.Kill).Stop() // a stopped guard would not kill it
	given := time.After(wholeHookMost)
	for done := false; !done || len(c.Events()) > 0; {
		select {
		case <-c.Done():
			done = true
		case <-given:
			select {
			case <-c.Done(): // it ended while this process was stopped
				continue
			case <-time.After(time.Second):
			}
			return fmt.Errorf("not waited for any longer, since it can't be killed: it has had %v", wholeHookMost)
		case event := <-c.Events():
			switch {
			case event.Leftovers != "":
				warn("the hook has ended; ending what it left running: " + event.Leftovers)
			case event.Unkillable != "":
				warn("these processes can't be killed: " + event.Unkillable)
			}
		}
	}
	switch result := c.Result(); {
	case result.Ending == child.LeaseOver, result.Ending == child.ByOrder, result.Ending == child.GuardLate:
		return fmt.Errorf("killed, since it took longer than %v", hookMost)
	case result.Ending != child.Exited:
		return errors.New("killed")
	case result.Status != 0:
		return errors.New(describeStatus(result.Status))
	}
	return nil
}
