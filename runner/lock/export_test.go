package lock

import (
	"context"
	"strings"

	"github.com/pglead/pglead/runner/session"
)

// OfList makes a configuration that of a list's item, for a lock that a test takes in another way.
func OfList(cfg Config) Config {
	cfg.ofList = true
	return cfg
}

// Bid is a bid, whose steps tests take one by one.
type Bid = bid

// NewBid is newBid, without a guard.
func NewBid(s *session.Session, cfg Config, contested bool) *Bid {
	return newBid(newListener(s, &cfg, contested), cfg, nil)
}

func (b *Bid) Lost() error                                       { return b.Session.Err() }
func (b *Bid) Try(ctx context.Context) (granted bool, err error) { return b.try(ctx) }
func (b *Bid) TryAlone(ctx context.Context) error                { return b.tryAlone(ctx) }
func (b *Bid) Settle(ctx context.Context) (*Held, error)         { return b.settle(ctx) }
func (b *Bid) GiveBack(ctx context.Context) error                { return b.giveBack(ctx) }
func (b *Bid) Listen(ctx context.Context) error                  { return b.listen(ctx) }
func (b *Bid) Unlisten(ctx context.Context) error                { return b.listener.unlisten(ctx) }
func (b *Bid) EndArrival(ctx context.Context) error              { return b.endArrival(ctx) }

// NextNamed is the session that the announcement of the end would name, or an error.
func (h *Held) NextNamed(ctx context.Context) string {
	_, order, _ := strings.Cut(h.announceEndQuery(h.grants[0].Lock, h.cfg.Claim.listenersSQL()), " FROM ")
	row, err := h.Session.Row(ctx, 1, "SELECT pid FROM "+order)
	if err != nil {
		return err.Error()
	}
	return row[0]
}

// OpenSession opens a session as a candidate does that comes back.
func OpenSession(ctx context.Context, cfg Config) (*session.Session, error) {
	return NewCandidate(cfg).openSession(ctx, "")
}

// ExchangeAll is an exchange that several have joined: the locks to release, and those to try for.
func (l *List) ExchangeAll(last, next []*Attempt) (releaseErr, tryErr error) {
	x := &exchange{list: l}
	for _, a := range last {
		x.add(a.held, nil)
	}
	for _, a := range next {
		x.add(nil, a.bid)
	}
	return x.ask(context.Background())
}

// HoldExchanges keeps exchanges from being sent until send is called.
func (l *List) HoldExchanges() (send func()) {
	l.exchanging.Lock()
	return l.exchanging.Unlock
}

// Joined is how many have joined the next exchange to try for a lock.
func (l *List) Joined() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextExchange == nil {
		return 0
	}
	return len(l.nextExchange.next)
}

// Fits says whether the attempt's next step can be part of an exchange.
func (a *Attempt) Fits() bool {
	if a.held != nil {
		return a.held.endFits()
	}
	return a.bid.tryFits()
}

// MostKept is mostKept.
const MostKept = mostKept

// Kept says whether the list listens until it comes back to the item.
func (a *Attempt) Kept() bool { return a.kept }
