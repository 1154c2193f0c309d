package evidence

import (
	"cmp"
	"slices"

	"github.com/pglead/pglead/runner/boottime"
)

// heardEnd is the announcement of a tenure's end, as it was heard.
type heardEnd struct {
	Announcement
	noted   int              // seq when it was heard
	at      boottime.Instant // when it was heard
	role    uint32           // of the session that said it; 0 until that is known
	applied bool
}

// Whose word counts for what:
//
//	said by                       started        clean                     dead
//	the waiter's own role         counts         any tenure it names       any tenure it names
//	one seen to hold the lock     counts         its own, those of its     its own, those of its
//	                                             role, and unknown ones    role
//	the role of one seen to hold  counts         those of its role         those of its role
//	it that has not ended
//	a stranger                    for a delay:   its own start never was   nothing
//	                              see delayFor
//
// A word names the tenure of its token and, with the field all, those before it (speaksOf). dead
// counts only if it names the token of a confirmed start.

// applyWords applies each credible word that has not been applied yet: it ends the tenures of
// which the word speaks.
func (e *Evidence) applyWords() {
	for i, w := range e.ends {
		if w.Word == Dead && e.isOwn(w.PID) {
			e.forget(w, func(s knownStart) bool { return !e.isConfirmed(s) })
		}
		if w.applied || !e.isCredible(w) {
			continue
		}
		e.ends[i].applied = true
		isNews := e.fromHolder(w) || slices.ContainsFunc(e.starts, func(s knownStart) bool {
			return e.discharges(w, s) && e.isConfirmed(s) && s.noted > e.mark.noted
		})
		var left []knownStart // not in place: whether one is discharged depends on the others
		for _, s := range e.starts {
			if !e.discharges(w, s) {
				left = append(left, s)
			}
		}
		e.starts = left
		if !isNews { // the word is a repetition, or late
			continue
		}
		switch {
		case e.last == nil || w.Token > e.last.token:
			e.last = &lastEnd{token: w.Token, coversEarlier: w.CoversEarlier}
		case w.Token == e.last.token && w.CoversEarlier: // until now the end was only seen in the session's name
			e.last.coversEarlier = true
		}
		e.last.at = boottime.Now()
	}
}

// isCredible says whether a word may discharge anything. If the number now belongs to a session of
// another role, the server has reused it, and the word does not count. A word saying that another
// session's command is dead has to name the token of a confirmed start.
func (e *Evidence) isCredible(w heardEnd) bool {
	if w.role != 0 && w.role != e.seen[w.PID].role {
		return false
	}
	if w.Word == Dead && !slices.ContainsFunc(e.starts, func(s knownStart) bool { return s.token == w.Token && e.isConfirmed(s) }) {
		return false
	}
	return e.trusts(w.PID)
}

// trusts says whether a session was seen to hold the lock, or has the role of the waiter or
// of a holder whose command may be alive. All others may be strangers.
func (e *Evidence) trusts(pid uint32) bool {
	return e.seen[pid].held > 0 || e.isOwn(pid) || slices.ContainsFunc(e.starts, func(s knownStart) bool {
		return e.seen[s.pid].held > 0 && e.sameRole(s.pid, pid)
	})
}

// isOwn says whether a session is known to have the waiter's role.
func (e *Evidence) isOwn(pid uint32) bool { return e.own != 0 && e.seen[pid].role == e.own }

// sameRole says whether two sessions are known to have the same role.
func (e *Evidence) sameRole(a, b uint32) bool {
	return e.seen[a].role != 0 && e.seen[a].role == e.seen[b].role
}

// fromHolder says whether a word came from the session that had the lock. Then all tenures that
// were known before are earlier ones. Any other word may be late, or repeated: it concerns the
// tokens up to its own, and no tenure whose token isn't known.
//
// A word counts as the holder's if a look since the mark has shown its session, or if the word
// itself shows that it was said after the mark was taken: its session had the lock until then, and
// every later start has been announced to this waiter. The holder may have started before the mark,
// and ended before the look.
func (e *Evidence) fromHolder(w heardEnd) bool {
	return w.Word == Clean && (e.seen[w.PID].held > e.mark.noted || e.mark.taken && w.LSN > e.mark.at)
}

// discharges says whether a credible word discharges this tenure.
func (e *Evidence) discharges(w heardEnd, s knownStart) bool {
	return s.kind != ofTooMany && e.maySpeakFor(w.PID, s) && e.speaksOf(w, s)
}

// maySpeakFor says whether a session may end this tenure: its own, or one of a session of the
// same role. A session of the waiter's own role may end any tenure. A session that was seen to hold
// the lock may also end a tenure whose session is unknown.
func (e *Evidence) maySpeakFor(pid uint32, s knownStart) bool {
	return s.pid == pid || e.isOwn(pid) || e.sameRole(s.pid, pid) || s.kind == ofUnknown && e.seen[pid].held > 0
}

// speaksOf says whether a word speaks of this tenure. A word for all earlier tenures covers those
// for which its holder has waited long enough, by its own settings.
func (e *Evidence) speaksOf(w heardEnd, s knownStart) bool {
	all := w.CoversEarlier && s.outlives <= deadAfter(w.Announcement)
	switch {
	case s.token == 0:
		return e.fromHolder(w) && s.noted < w.noted && s.after < w.Token && (s.pid == w.PID || all)
	case s.pid == w.PID || all:
		return s.token <= w.Token
	}
	return s.token == w.Token
}

// forget removes the starts that have a word's token, were noted before the word, and satisfy
// also. It says whether there were any. Two kinds of words do this and discharge nothing:
// a dead from the waiter's role, for a start whose session was gone before its role could be
// asked for; and the clean of a session that is not trusted, for that session's own start.
func (e *Evidence) forget(w heardEnd, also func(knownStart) bool) bool {
	known := len(e.starts)
	e.starts = slices.DeleteFunc(e.starts, func(s knownStart) bool { return s.token == w.Token && s.noted < w.noted && also(s) })
	return len(e.starts) < known
}

// Unverified are the sessions whose roles have to be asked for; NoteRole takes the answers. Some
// have announced the end of a tenure, which counts for nothing until the role is known. Others have
// announced a start: they may be gone when their end is heard, and then have no role any more.
func (e *Evidence) Unverified() (pids []uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	note := func(pid uint32) {
		if _, known := e.seen[pid]; !known && len(pids) < mostWords && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	for _, w := range e.ends {
		note(w.PID)
	}
	for _, s := range e.starts {
		if s.kind == ofSession {
			note(s.pid)
		}
	}
	return pids
}

// NoteRole notes the role of a session that has spoken; role 0 says that it is gone. The clean of a
// session that is gone, or that is not trusted, cancels the start that the same session announced,
// and does nothing else: a stranger's start is not worth waiting for.
func (e *Evidence) NoteRole(pid, role uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	gone := role == 0
	if _, known := e.seen[pid]; gone && !known {
		e.seen[pid] = sighting{} // its role isn't asked for again until it says more
	}
	if !gone {
		e.seen[pid] = sighting{role: role}
		for i, w := range e.ends {
			if w.PID == pid {
				e.ends[i].role = cmp.Or(w.role, role)
			}
		}
		e.applyWords()
	}
	for _, w := range e.ends {
		ended := w.PID == pid && w.Word == Clean && !e.trusts(pid)
		if ended && e.forget(w, func(s knownStart) bool { return s.pid == pid }) && e.last != nil {
			e.last.at = boottime.Now()
		}
	}
	if gone {
		e.ends = slices.DeleteFunc(e.ends, func(w heardEnd) bool { return w.PID == pid })
	}
}

// Trusts says whether a session's words are credible.
func (e *Evidence) Trusts(pid uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.trusts(pid)
}
