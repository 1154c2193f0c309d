package evidence

import (
	"cmp"
	"slices"

	"github.com/pglead/pglead/runner/boottime"
)

// endNotice is a word of a tenure's end that was heard.
type endNotice struct {
	Announcement
	noted   int
	at      boottime.Instant
	role    uint32 // of the session that said it; 0 until that is known
	counted bool
}

// judge lets the words that count discharge tenures.
func (e *Evidence) judge() {
	for i, w := range e.ends {
		if w.Word == Dead && e.isOwn(e.seen[w.PID]) {
			e.forgetHearsay(w)
		}
		if w.counted || !e.counts(w) {
			continue
		}
		e.ends[i].counted = true
		tells := e.isFresh(w) || slices.ContainsFunc(e.starts, func(s start) bool { return e.discharges(w, s) && !e.isHearsay(s) })
		e.starts = slices.DeleteFunc(e.starts, func(s start) bool { return e.discharges(w, s) })
		if !tells {
			continue
		}
		switch { // else the word was said again, or is late
		case e.last == nil || w.Token > e.last.token:
			e.last = &lastWord{token: w.Token, coversEarlier: w.CoversEarlier}
		case w.Token == e.last.token && w.CoversEarlier: // before, it was seen in the session's name
			e.last.coversEarlier = true
		}
		e.last.at = boottime.Now()
	}
}

// forgetHearsay forgets a start that only its own session has said, which was gone before
// it was asked for its role. A session of the waiter's role says that its command is dead.
func (e *Evidence) forgetHearsay(w endNotice) {
	e.starts = slices.DeleteFunc(e.starts, func(s start) bool { return s.token == w.Token && s.noted < w.noted && e.isHearsay(s) })
}

// counts says whether a word may discharge anything. A word that another session's command
// is dead has to name a tenure that is known by more than hearsay. A session of another role
// has the number of one that is gone.
func (e *Evidence) counts(w endNotice) bool {
	if w.role != 0 && w.role != e.seen[w.PID].role {
		return false
	}
	if w.Word == Dead && !slices.ContainsFunc(e.starts, func(s start) bool { return s.token == w.Token && !e.isHearsay(s) }) {
		return false
	}
	return e.trusts(w.PID)
}

// trusts says whether a session was seen to hold the lock, or has the waiter's role, or
// that of a holder whose command may be alive. All others may be strangers.
func (e *Evidence) trusts(pid uint32) bool {
	speaker, known := e.seen[pid]
	return known && (speaker.held || e.isOwn(speaker) || slices.ContainsFunc(e.starts, func(s start) bool {
		holder := e.seen[s.pid]
		return holder.held && holder.role != 0 && holder.role == speaker.role
	}))
}

// isOwn says whether a session is of this one's role.
func (e *Evidence) isOwn(s sighting) bool { return s.role != 0 && s.role == e.own }

// isFresh says whether the lock's holder said a word, so that all that was known before
// is earlier. Any other word may be late, or repeated: it concerns the tokens up to its
// own, and no tenure whose token isn't known.
func (e *Evidence) isFresh(w endNotice) bool { return w.Word == Clean && e.seen[w.PID].held }

// discharges says whether a word that counts discharges this tenure.
func (e *Evidence) discharges(w endNotice, s start) bool {
	if s.pid == overflow {
		return false
	}
	speaker := e.seen[w.PID]
	holder, known := e.seen[s.pid]
	switch {
	case s.pid == w.PID:
	case e.isOwn(speaker):
	case known && holder.role != 0 && holder.role == speaker.role:
	case s.pid == 0 && speaker.held:
	default: // of another role
		return false
	}
	// A holder that speaks for all earlier tenures has waited for them, as long as its own
	// settings call for.
	all := w.CoversEarlier && s.need <= deadAfter(w.Announcement)
	switch {
	case s.token == 0:
		return e.isFresh(w) && s.noted < w.noted && s.after < w.Token && (s.pid == w.PID || all)
	case s.pid == w.PID || all:
		return s.token <= w.Token
	}
	return s.token == w.Token
}

// Unverified are the sessions whose roles have to be asked for, which NoteRole notes. The words
// of some count for nothing until then. Others have announced a start: when their end is
// heard they may be gone, and have no role any more.
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
		if s.pid != 0 && s.pid != overflow {
			note(s.pid)
		}
	}
	return pids
}

// NoteRole notes the role of a session that has spoken, or that the session is gone. The
// clean of one that is gone, or of a role that doesn't count, cancels its own start, and
// does nothing else: if it was a stranger's, there was no start to wait for.
func (e *Evidence) NoteRole(pid, role uint32, found bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.seen[pid]; !found && !known {
		e.seen[pid] = sighting{} // so that it isn't asked for again before it says more
	}
	if found {
		e.seen[pid] = sighting{role: role}
		for i, w := range e.ends {
			if w.PID == pid {
				e.ends[i].role = cmp.Or(w.role, role)
			}
		}
		e.judge()
	}
	if !e.trusts(pid) {
		for _, w := range e.ends {
			if w.PID == pid && w.Word == Clean {
				e.takeBack(w)
			}
		}
	}
	if !found {
		e.ends = slices.DeleteFunc(e.ends, func(w endNotice) bool { return w.PID == pid })
	}
}

// takeBack forgets the start that a session said, since it has said the end of it, too.
func (e *Evidence) takeBack(w endNotice) {
	known := len(e.starts)
	e.starts = slices.DeleteFunc(e.starts, func(s start) bool {
		return s.pid == w.PID && s.token == w.Token && s.noted < w.noted
	})
	if len(e.starts) < known && e.last != nil {
		e.last.at = boottime.Now()
	}
}

// Trusts says whether a session's words would count.
func (e *Evidence) Trusts(pid uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.trusts(pid)
}
