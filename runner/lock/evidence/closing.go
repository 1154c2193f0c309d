package evidence

import (
	"cmp"
	"slices"

	"github.com/pglead/pglead/runner/boottime"
)

// heardWord is the announcement of a run's end, as it was heard or, in a session's name, seen.
type heardWord struct {
	Announcement
	noted   int              // seq when it was heard
	at      boottime.Instant // when it was heard
	role    uint32           // of the session that said it; 0 until that is known
	applied bool
}

// trust is how far the waiter trusts a session, by what that is to it. What a word does depends on
// the trust in the session that says it. Of clean and dead the table says whose runs they can end
// (ends):
//
//	            started        clean                     dead
//	asOwn       counts         any                       any
//	asHolder    counts         itself, sessions of its   itself, sessions of its
//	                           role, unknown ones        role
//	asRelative  counts         sessions of its role      sessions of its role
//	asStranger  for the        none: its own start is    none
//	            waiter's own   forgotten
//	            lock-delay
//
// A word speaks only of the run of its token and, with the field all, of those before it
// (speaksOf). dead counts only if it names the token of a confirmed start (counts). About what the
// ledger knows, only the waiter's own role is believed (KnowsDead). A stranger's words can only
// make the waiter wait, and for no longer than the waiter's own settings do.
type trust int

const (
	asStranger trust = iota // it may be anybody
	asRelative              // it has the role of a holder that was seen, and whose command may be alive
	asHolder                // it was seen to hold the lock
	asOwn                   // it has the waiter's role
)

// trustIn is the trust in a session, as far as its role is known.
func (e *Evidence) trustIn(pid uint32) trust {
	switch {
	case e.ownRole != 0 && e.peers[pid].role == e.ownRole:
		return asOwn
	case e.peers[pid].heldAt > 0:
		return asHolder
	case slices.ContainsFunc(e.starts, func(s knownStart) bool { return e.peers[s.pid].heldAt > 0 && e.sameRole(s.pid, pid) }):
		return asRelative
	}
	return asStranger
}

// applyWords applies each word that counts, and has not been applied yet.
func (e *Evidence) applyWords() {
	for i, w := range e.words {
		if w.Word == Dead && e.trustIn(w.PID) == asOwn {
			e.dropStarts(w, func(s knownStart) bool { return !e.isConfirmed(s) })
		}
		if e.peers[w.PID].role != 0 {
			e.cancelOwn(w)
		}
		if w.applied || !e.counts(w) {
			continue
		}
		e.words[i].applied = true
		e.apply(w)
	}
}

// apply closes the starts that a word ends. If that is news, and not a repetition or late, the word
// is that of the last end. With no start open there is nothing to close, but clean is news if its
// session had the lock after the waiter's mark was taken (fromHolder). A look may show that later
// than the word.
func (e *Evidence) apply(w heardWord) {
	isNews := e.fromHolder(w)
	var left []knownStart // a new list, since ends still looks at all of e.starts
	for _, s := range e.starts {
		if !e.ends(w, s) {
			left = append(left, s)
			continue
		}
		isNews = isNews || e.isConfirmed(s) && s.noted > e.mark.noted
	}
	e.starts = left
	if !isNews {
		return
	}
	if e.last == nil {
		e.last = &lastEnd{}
	}
	switch last := e.last; {
	case w.Token > last.token:
		last.token, last.coversEarlier = w.Token, w.CoversEarlier
	case w.Token == last.token && w.CoversEarlier: // so far the end was only seen, in the session's name
		last.coversEarlier = true
	}
	if e.trustIn(w.PID) == asOwn {
		e.last.ownToken = w.Token
		if w.CoversEarlier {
			e.last.ownDeadUpTo = max(e.last.ownDeadUpTo, w.Token)
		}
	}
	e.last.at = boottime.Now()
}

// counts says whether a word may close anything. If the speaker's number now belongs to a
// session of another role, the server has reused the number, and the word does not count. The word
// dead has to name the token of a confirmed start.
func (e *Evidence) counts(w heardWord) bool {
	if w.role != 0 && w.role != e.peers[w.PID].role {
		return false
	}
	if w.Word == Dead && !slices.ContainsFunc(e.starts, func(s knownStart) bool { return s.token == w.Token && e.isConfirmed(s) }) {
		return false
	}
	return e.trustIn(w.PID) > asStranger
}

// sameRole says whether two sessions are known to have the same role.
func (e *Evidence) sameRole(a, b uint32) bool {
	return e.peers[a].role != 0 && e.peers[a].role == e.peers[b].role
}

// fromHolder says whether a word came from the session that had the lock at that time. Then all
// runs that were known before the word are earlier ones. Any other word may be late, or
// repeated: it concerns only tokens up to its own, and no run whose token isn't known.
//
// A word counts as the holder's if a look since the mark has shown its session, or if the word
// itself shows that it was said after the mark was taken: then the session had the lock after the
// mark, and every later start has been announced to this waiter. Such a holder may have started
// before the mark and ended before the look.
func (e *Evidence) fromHolder(w heardWord) bool {
	return w.Word == Clean && (e.peers[w.PID].heldAt > e.mark.noted || e.mark.taken && w.LSN > e.mark.at)
}

// ends says whether a word that counts ends this start: the word speaks of that run, and its
// session may end it, row by row as the table of trust says.
func (e *Evidence) ends(w heardWord, s knownStart) bool {
	if s.kind == ofTooMany || !e.speaksOf(w, s) {
		return false
	}
	ofItsRole := e.sameRole(s.pid, w.PID)
	switch e.trustIn(w.PID) {
	case asOwn:
		return true
	case asHolder:
		return s.pid == w.PID || ofItsRole || s.kind == ofUnknown
	case asRelative:
		return ofItsRole
	case asStranger: // its words end nothing here: see cancelOwn
	}
	return false
}

// speaksOf says whether a word speaks of this run. A word with the field all covers an earlier
// run only if its holder has waited long enough for that one, by the holder's own settings.
func (e *Evidence) speaksOf(w heardWord, s knownStart) bool {
	all := w.CoversEarlier && s.outlives <= w.outlives()
	switch {
	case s.token == 0:
		return e.fromHolder(w) && s.noted < w.noted && s.after < w.Token && (s.pid == w.PID || all)
	case s.pid == w.PID || all:
		return s.token <= w.Token
	}
	return s.token == w.Token
}

// dropStarts removes the starts that have a word's token, were noted before the word, and satisfy
// also. It says whether there were any. Two kinds of words have a start dropped, and close nothing:
// the word dead from the waiter's role, if the starting session was gone before its role could be
// asked for; and the word clean of a stranger, for that stranger's own start (cancelOwn). If no
// start is open then, the state is ended if an end is known, else what it was in the beginning.
func (e *Evidence) dropStarts(w heardWord, also func(knownStart) bool) bool {
	known := len(e.starts)
	e.starts = slices.DeleteFunc(e.starts, func(s knownStart) bool { return s.token == w.Token && s.noted < w.noted && also(s) })
	return len(e.starts) < known
}

// RolesWanted are the sessions whose roles have to be asked for; NoteRole takes the answers. Some
// have announced the end of a run, which counts for nothing until the role is known. Others have
// announced a start: when their end is heard they may be gone, and it would be too late to ask for
// their role.
func (e *Evidence) RolesWanted() (pids []uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	want := func(pid uint32) {
		if _, known := e.peers[pid]; !known && len(pids) < mostWords && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	for _, w := range e.words {
		want(w.PID)
	}
	for _, s := range e.starts {
		if s.kind == ofSession {
			want(s.pid)
		}
	}
	return pids
}

// dropWords forgets the words of a session that is gone.
func (e *Evidence) dropWords(pid uint32) {
	for _, w := range e.words {
		if w.PID == pid {
			e.cancelOwn(w)
		}
	}
	e.words = slices.DeleteFunc(e.words, func(w heardWord) bool { return w.PID == pid })
}

// cancelOwn removes the start that a stranger, or a session that is gone, has announced itself, if
// this is its word clean. The word does nothing else: a stranger's start is not worth waiting for.
func (e *Evidence) cancelOwn(w heardWord) {
	if w.Word != Clean || e.trustIn(w.PID) > asStranger {
		return
	}
	if e.dropStarts(w, func(s knownStart) bool { return s.pid == w.PID }) && e.last != nil {
		e.last.at = boottime.Now()
	}
}

// NoteRole notes the role of a session that has spoken; role 0 says that the session is gone.
func (e *Evidence) NoteRole(pid, role uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if role == 0 {
		if _, known := e.peers[pid]; !known {
			e.peers[pid] = peer{} // its role isn't asked for again until it says more
		}
		e.dropWords(pid)
		return
	}
	e.peers[pid] = peer{role: role, heldAt: e.peers[pid].heldAt}
	for i, w := range e.words {
		if w.PID == pid {
			e.words[i].role = cmp.Or(w.role, role)
		}
	}
	e.applyWords()
}

// Trusts says whether a session is more than a stranger. A word of it may not count for all that:
// counts.
func (e *Evidence) Trusts(pid uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.trustIn(pid) > asStranger
}
