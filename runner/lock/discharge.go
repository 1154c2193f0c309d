package lock

import (
	"cmp"
	"slices"
	"time"

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
func (h *history) judge() {
	for i, w := range h.ends {
		if w.Word == wordDead && h.isOwn(h.seen[w.PID]) {
			h.forgetHearsay(w)
		}
		if w.counted || !h.counts(w) {
			continue
		}
		h.ends[i].counted = true
		tells := h.isFresh(w) || slices.ContainsFunc(h.starts, func(s start) bool { return h.discharges(w, s) && !h.isHearsay(s) })
		h.starts = slices.DeleteFunc(h.starts, func(s start) bool { return h.discharges(w, s) })
		if !tells {
			continue
		}
		h.heardAt = time.Now()
		switch { // else the word was said again, or is late
		case !h.spoken || w.Token > h.latest:
			h.spoken, h.latest, h.ownOnly = true, w.Token, w.OwnOnly
		case w.Token == h.latest && !w.OwnOnly: // before, it was seen in the session's name
			h.ownOnly = false
		}
	}
}

// forgetHearsay forgets a start that only its own session has said, which was gone before
// it was asked for its role. A session of the waiter's role says that its command is dead.
func (h *history) forgetHearsay(w endNotice) {
	h.starts = slices.DeleteFunc(h.starts, func(s start) bool { return s.token == w.Token && s.noted < w.noted && h.isHearsay(s) })
}

// counts says whether a word may discharge anything. A word that another session's command
// is dead has to name a tenure that is known by more than hearsay. A session of another role
// has the number of one that is gone.
func (h *history) counts(w endNotice) bool {
	if w.role != 0 && w.role != h.seen[w.PID].role {
		return false
	}
	if w.Word == wordDead && !slices.ContainsFunc(h.starts, func(s start) bool { return s.token == w.Token && !h.isHearsay(s) }) {
		return false
	}
	return h.trusts(w.PID)
}

// trusts says whether a session was seen to hold the lock, or has the waiter's role, or
// that of a holder whose command may be alive. All others may be strangers.
func (h *history) trusts(pid uint32) bool {
	speaker, known := h.seen[pid]
	return known && (speaker.held || h.isOwn(speaker) || slices.ContainsFunc(h.starts, func(s start) bool {
		holder := h.seen[s.pid]
		return holder.held && holder.role != 0 && holder.role == speaker.role
	}))
}

// isOwn says whether a session is of this one's role.
func (h *history) isOwn(s sighting) bool { return s.role != 0 && s.role == h.own }

// isFresh says whether the lock's holder said a word, so that all that was known before
// is earlier. Any other word may be late, or repeated: it concerns the tokens up to its
// own, and no tenure whose token isn't known.
func (h *history) isFresh(w endNotice) bool { return w.Word == wordClean && h.seen[w.PID].held }

// discharges says whether a word that counts discharges this tenure.
func (h *history) discharges(w endNotice, s start) bool {
	speaker := h.seen[w.PID]
	holder, known := h.seen[s.pid]
	switch {
	case s.pid == w.PID:
	case h.isOwn(speaker):
	case known && holder.role != 0 && holder.role == speaker.role:
	case s.pid == 0 && speaker.held:
	default: // of another role
		return false
	}
	// A holder that speaks for all earlier tenures has waited for them, as long as its own
	// settings call for.
	all := !w.OwnOnly && s.need <= deadAfter(w.Announcement)
	switch {
	case s.token == 0:
		return h.isFresh(w) && s.noted < w.noted && s.after < w.Token && (s.pid == w.PID || all)
	case s.pid == w.PID || all:
		return s.token <= w.Token
	}
	return s.token == w.Token
}

// unverified are the sessions whose roles have to be asked for. The words of some count
// for nothing until then. Others have announced a start: when their end is heard they
// may be gone, and have no role any more.
func (h *history) unverified() (pids []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	note := func(pid uint32) {
		if _, known := h.seen[pid]; !known && len(pids) < mostWords && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	for _, w := range h.ends {
		note(w.PID)
	}
	for _, s := range h.starts {
		if s.pid != 0 && s.pid != crowd && s.noted > h.asked {
			note(s.pid)
		}
	}
	h.asked = h.seq
	return pids
}

// verified notes the role of a session that has spoken, or that the session is gone. The
// clean of one that is gone, or of a role that doesn't count, cancels its own start, and
// does nothing else: if it was a stranger's, there was no start to wait for.
func (h *history) verified(pid, role uint32, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if found {
		h.seen[pid] = sighting{role: role}
		for i, w := range h.ends {
			if w.PID == pid {
				h.ends[i].role = cmp.Or(w.role, role)
			}
		}
		h.judge()
	}
	if !h.trusts(pid) {
		for _, w := range h.ends {
			if w.PID == pid && w.Word == wordClean {
				h.takeBack(w)
			}
		}
	}
	if !found {
		h.ends = slices.DeleteFunc(h.ends, func(w endNotice) bool { return w.PID == pid })
	}
}

// takeBack forgets the start that a session said, since it has said the end of it, too.
func (h *history) takeBack(w endNotice) {
	known := len(h.starts)
	h.starts = slices.DeleteFunc(h.starts, func(s start) bool {
		return s.pid == w.PID && s.token == w.Token && s.noted < w.noted
	})
	if len(h.starts) < known {
		h.heardAt = time.Now()
	}
}

// credible says whether a session's words would count.
func (h *history) credible(pid uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trusts(pid)
}
