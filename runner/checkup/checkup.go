// Package checkup defines what pglead doctor reports. Package doctor examines the server and
// package child the machine. Both need these types, and child must not import doctor.
package checkup

import "fmt"

// Status says how bad a finding is.
type Status string

// The statuses, from good to bad.
const (
	OK      Status = "ok"   // as it should be
	Note    Status = "note" // something to know that needs no action
	Warning Status = "warn" // it may hinder locking, or weaken the promise on this path or host
	Fail    Status = "fail" // with it the promise can't be kept, or no lock taken
)

// Check is a line of the checklist.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Seen   string `json:"seen"`
	Advice string `json:"advice,omitempty"` // what to do about it
}

// Okf is a finding that is as it should be.
func Okf(format string, args ...any) Check {
	return Check{Status: OK, Seen: fmt.Sprintf(format, args...)}
}

// Notef is a finding that needs no action; advice may be empty.
func Notef(advice, format string, args ...any) Check {
	return Check{Status: Note, Advice: advice, Seen: fmt.Sprintf(format, args...)}
}

// Warningf is a finding with advice what to do about it.
func Warningf(advice, format string, args ...any) Check {
	return Check{Status: Warning, Advice: advice, Seen: fmt.Sprintf(format, args...)}
}

// Failf is a finding with advice what has to be done about it.
func Failf(advice, format string, args ...any) Check {
	return Check{Status: Fail, Advice: advice, Seen: fmt.Sprintf(format, args...)}
}
