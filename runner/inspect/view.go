// Package inspect shows the holders and the waiters of a server's advisory locks: what
// the server knows about its sessions, and what pglead sessions say about themselves.
// limits.go has how many more sessions the server allows.
package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/visible"
)

// View is one session's part in one advisory lock, as the server shows it.
type View struct {
	Database string
	ID       lockkey.ID
	Shared   bool
	Granted  bool          // otherwise the session waits
	Waiting  time.Duration // how long the session has waited
	Backend  uint32        // its process number at the server; 0 for a prepared transaction
	Role     string
	Client   string // address, or empty for a unix socket
	// Application is the session's name, which everyone may see.
	Application string
	// Hidden says that this role may not see what the session says about itself.
	Hidden bool
	// Described says that the session is a pglead's.
	Described bool
	describe.Description
	Now  time.Time     // by the server's clock
	Idle time.Duration // since its last request was answered, if that is known

	named *named // what Key returns, if that is known already
}

type named struct {
	key   string
	slot  int
	known bool
}

// MarshalJSON writes the form that programs read.
func (v View) MarshalJSON() ([]byte, error) {
	seconds, since, startsIn := v.Waiting, time.Time{}, (*float64)(nil)
	if v.Granted {
		seconds, since = v.HeldFor(), v.Since
	}
	if left, delayed := v.StartsIn(); delayed {
		startsIn = new(left.Seconds())
	}
	return json.Marshal(struct {
		Host        string    `json:"host"`
		PID         int       `json:"pid,omitempty"`
		User        string    `json:"user,omitempty"`
		Command     string    `json:"command,omitempty"`
		Note        string    `json:"note,omitempty"`
		Role        string    `json:"role"`
		Client      string    `json:"client,omitempty"`
		Application string    `json:"application"`
		Backend     uint32    `json:"backend"`
		Pglead      bool      `json:"pglead"`
		Since       time.Time `json:"since,omitzero"`
		Seconds     float64   `json:"seconds,omitempty"`           // held for, or waiting for
		StartsIn    *float64  `json:"starts_in_seconds,omitempty"` // not there once the command has started
		Token       int64     `json:"token,omitempty"`
		Lease       float64   `json:"lease_seconds,omitempty"`
		Silent      float64   `json:"silent_seconds,omitempty"` // not heard for, if its heartbeat is overdue
		Hidden      bool      `json:"hidden,omitempty"`         // this role may not see the details
	}{
		v.Where(), v.PID, v.User, v.Command, v.Note, v.Role, v.Client, v.Application, v.Backend, v.Pglead(),
		since, seconds.Seconds(), startsIn, v.Token, v.Lease.Seconds(), v.SilentFor().Seconds(), v.Hidden,
	})
}

// SameTenure says whether two views may be of one holding of a lock. A pooler may give the backend
// of one holder to the next.
func (v View) SameTenure(other View) bool {
	sameRun := v.PID == other.PID && v.Host == other.Host && (v.Token == other.Token || v.Token == 0 || other.Token == 0)
	return v.Backend == other.Backend && (sameRun || !v.Described || !other.Described)
}

// HeldFor is how long a lock has been held, or 0 if that isn't known.
func (v View) HeldFor() time.Duration {
	if v.Since.IsZero() {
		return 0
	}
	return max(0, v.Now.Sub(v.Since))
}

// StartsIn says whether the holder waits out a lock-delay before it starts its command, and how long
// that still takes at most.
func (v View) StartsIn() (left time.Duration, delayed bool) {
	if !v.Granted || v.Delay <= 0 {
		return 0, false
	}
	if _, of := v.list(); of && len(v.Keys) != 1 { // the delay may be another item's
		return 0, false
	}
	return max(0, v.Delay-v.HeldFor()), true
}

// SilentFor is how long the server has not heard from a pglead that has the lock, or 0 if
// no heartbeat is missing.
func (v View) SilentFor() time.Duration {
	if !v.Granted || v.Lease <= 0 || v.Idle < 2*leasetime.BeatEvery(v.Lease) {
		return 0
	}
	return v.Idle
}

// Key is the key and the slot of this lock, if the session names a key that has this lock's number.
// (Two keys may have the same number, and the locks of other programs have no key.)
func (v View) Key() (key string, slot int, known bool) {
	if v.named != nil {
		return v.named.key, v.named.slot, v.named.known
	}
	return newNaming(nil).of(v)
}

// applied is the key in the session's name, which every role sees. A long name is cut off.
func (v View) applied() (keys []string) {
	if name, _ := describe.ParseName(v.Application); name.Key != "" {
		keys = []string{name.Key}
	}
	return keys
}

// list is the key that was given to a session that works on a list, and whether the session works
// on one.
func (v View) list() (key string, of bool) {
	key = strings.Join(v.applied(), "")
	return key, strings.Contains(key, describe.Placeholder)
}

// Pglead says whether the session is a pglead's, or at least says so.
func (v View) Pglead() bool {
	_, named := describe.ParseName(v.Application)
	return v.Described || named
}

// Where is the session's host, as far as it is known.
func (v View) Where() string {
	if v.Host != "" {
		return v.Host
	}
	name, _ := describe.ParseName(v.Application)
	return cmp.Or(name.Host, v.Client, "this server's host")
}

// Prepared says whether a prepared transaction, which has no session, holds the lock.
func (v View) Prepared() bool { return v.Granted && v.Backend == 0 }

// String names the holder or the waiter in one line. It escapes what others wrote.
func (v View) String() string {
	var text string
	switch {
	case v.Described:
		text = fmt.Sprintf("%s (%s)", v.Where(), v.process())
	case v.Pglead():
		text = fmt.Sprintf("pglead on %s (role %s)", v.Where(), v.Role)
	case v.Prepared():
		text = "a prepared transaction; pg_prepared_xacts lists them, and COMMIT PREPARED or ROLLBACK PREPARED ends one"
	default:
		text = fmt.Sprintf("a program that is not pglead (role %s, application %q, backend %d)", v.Role, v.Application, v.Backend)
	}
	if v.Client != "" {
		text += " from " + v.Client
	}
	if held := v.HeldFor(); v.Granted && held > 0 {
		text += fmt.Sprintf(" since %s, for %s", v.Since.Local().Format(sinceFormat(held)), inSeconds(held))
	}
	if left, delayed := v.StartsIn(); delayed {
		text += fmt.Sprintf(", its command starts in %s: an earlier one may live on", inSeconds(left))
	}
	if silent := v.SilentFor(); silent > 0 {
		text += ", silent for " + inSeconds(silent)
	}
	if v.Note != "" {
		text += ", note: " + v.Note
	}
	if _, _, known := v.Key(); v.Described && !known && len(v.Keys) > 0 {
		if list, of := v.list(); of { // it shows some of its items, and those a moment late
			text += fmt.Sprintf(", for an item of %q", list)
		} else {
			text += fmt.Sprintf(", for another key of the same number (%q)", strings.Join(v.Keys, ", "))
		}
	}
	return visible.Text(text)
}

func inSeconds(d time.Duration) string { return visible.Duration(d.Truncate(time.Second)) }

// process names the holder's command and user, if the server has not cut that off
// (track_activity_query_size).
func (v View) process() string {
	text := fmt.Sprintf("process %d", v.PID)
	if v.Command != "" {
		text = v.Command + ", " + text
	}
	if v.User != "" {
		text += " of " + v.User
	}
	return text
}

// sinceFormat omits the date if the instant was less than half a day ago.
func sinceFormat(ago time.Duration) string {
	if ago < 12*time.Hour {
		return time.TimeOnly
	}
	return time.DateTime
}
