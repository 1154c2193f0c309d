package lock

import (
	"slices"
	"time"
)

// endNotice is a last endNotice that was heard.
type endNotice struct {
	Announcement
	noted   int
	counted bool
}

// judge lets the words that count discharge what they discharge.
func (h *history) judge() {
	for i, w := range h.words {
		if w.counted || !h.counts(w) {
			continue
		}
		h.words[i].counted = true
		known := len(h.starts)
		h.starts = slices.DeleteFunc(h.starts, func(s start) bool { return h.discharges(w, s) })
		if len(h.starts) == known && !h.isFresh(w) {
			continue
		}
		h.since = time.Now()
		if !h.spoken || w.Token > h.latest { // else it is one said again, or late
			h.spoken, h.latest, h.ownOnly = true, w.Token, w.OwnOnly
		}
	}
}

// counts says whether a word is one at all: its speaker has been seen to hold
// the lock, or is of the waiter's role or that of a former holder. A word that another
// session's command is dead has to name a tenure that is known: one that has started
// since is not.
func (h *history) counts(w endNotice) bool {
	if w.Event == wordDead && !slices.ContainsFunc(h.starts, func(s start) bool { return s.token == w.Token }) {
		return false
	}
	speaker, known := h.seen[w.PID]
	return known && (speaker.held || h.isOwn(speaker) || slices.ContainsFunc(h.starts, func(s start) bool {
		holder := h.seen[s.pid]
		return holder.held && holder.role == speaker.role
	}))
}

// isOwn says whether a session is of this one's role.
func (h *history) isOwn(s sighting) bool { return s.role != 0 && s.role == h.own }

// isFresh says whether a word was said by the lock's holder, so that whatever was
// known before is earlier. Any other may be late, or repeated: it says something of
// the tokens up to its own, and nothing of those that nobody knows.
func (h *history) isFresh(w endNotice) bool { return w.Event == wordClean && h.seen[w.PID].held }

// discharges says whether a word that counts does so for a tenure.
func (h *history) discharges(w endNotice, s start) bool {
	speaker := h.seen[w.PID]
	holder, known := h.seen[s.pid]
	switch {
	case s.pid == w.PID:
	case h.isOwn(speaker):
	case known && holder.role == speaker.role:
	case s.pid == 0 && speaker.held:
	default: // of another role
		return false
	}
	// A word for all earlier ones is that of a holder which has waited for them, as
	// long as its own settings call for.
	all := !w.OwnOnly && s.need <= deadAfter(w.Announcement)
	switch {
	case s.token == 0:
		return h.isFresh(w) && s.noted < w.noted && s.after < w.Token && (s.pid == w.PID || all)
	case s.pid == w.PID || all:
		return s.token <= w.Token
	}
	return s.token == w.Token
}

// unverified are the sessions that have said something which counts for nothing
// as long as nobody knows their roles, or that they have started: who is gone when
// its end is heard has a role no more.
func (h *history) unverified() (pids []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	note := func(pid uint32) {
		if _, known := h.seen[pid]; !known && len(pids) < mostWords && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	for _, w := range h.words {
		note(w.PID)
	}
	for _, s := range h.starts {
		if s.pid != 0 && s.pid != crowd && s.noted > h.asked {
			note(s.pid)
		}
	}
	h.asked = h.now
	return pids
}

// verified takes note of the role of a session that has said something, or that
// the session is gone.
func (h *history) verified(pid, role uint32, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !found {
		h.words = slices.DeleteFunc(h.words, func(w endNotice) bool { return w.PID == pid })
		return
	}
	h.seen[pid] = sighting{role: role}
	h.judge()
}

// credible says whether a session's words would count.
func (h *history) credible(pid uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts(endNotice{Announcement: Announcement{PID: pid}})
}
