//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
)

// installLedger makes a database that remembers runs, and returns its environment.
// It has had one run, so that no later run is the very first.
func (b *bench) installLedger(at site, database string) (env []string, err error) {
	if _, err := at.server.Query("postgres", "CREATE DATABASE "+database); err != nil {
		return nil, err
	}
	env = withVariable(at.unix, "PGDATABASE", database)
	for _, args := range [][]string{{"ledger", "install"}, {"run", "--key", key, "--ledger", "require", "--", "true"}} {
		p, err := b.program(slices.Concat(env, numbered()), append([]string{b.pglead}, args...)...)
		if err == nil {
			_, err = p.output()
		}
		if err != nil {
			return nil, err
		}
	}
	return env, nil
}

// remembering is the environment of a database on the first server that has a ledger.
// The other databases have none.
func (b *bench) remembering() (env []string, err error) {
	if b.memorial == nil {
		b.memorial, err = b.installLedger(b.site, "memorial")
	}
	return b.memorial, err
}

// ledger measures how much more a run and a handover cost where they are remembered, and a run
// that only looks whether they are.
func (b *bench) ledger() error {
	with, err := b.remembering()
	if err != nil {
		return err
	}
	f := &field{b: b}
	const without = ", no ledger"
	f.addPglead(without, "", b.unix, "--", "true")
	f.addPglead(", with a ledger", "**pglead run**"+without, with, "--", "true")
	if err := f.race(); err != nil {
		return err
	}
	f.print("With a ledger: a free lock and `true`", "")
	b.goal("run with a ledger against without", f.against("**pglead run**, with a ledger", "**pglead run**"+without), 1.15, " ×")
	return errors.Join(b.ledgerProbe(), b.ledgerHandover(with))
}

// ledgerProbe measures what it takes to find no ledger. A refusal does that and little
// else, so its time varies least.
func (b *bench) ledgerProbe() error {
	release, err := b.holdKey()
	if err != nil {
		return err
	}
	defer release()
	f := &field{b: b, rounds: 5 * b.rounds}
	f.addRefused(" --ledger off", "", b.unix, "--ledger", "off")
	f.addRefused("", "**pglead run** --ledger off", b.unix)
	if err := f.race(); err != nil {
		return err
	}
	extra, uncertain := f.more("**pglead run**", "**pglead run** --ledger off")
	f.print("No ledger: what it takes to see that", fmt.Sprintf(" A lock that is held elsewhere, `--wait 0`: %.3f ms more, ± %.3f (the median of the turns' differences, and its standard error).", extra, uncertain))
	b.goal("login that finds no ledger against --ledger off", extra, .1, " ms more")
	return nil
}

func (b *bench) ledgerHandover(with []string) error {
	var pairs []*pair
	for _, of := range []struct {
		name, against string
		env           []string
	}{{"**pglead run**", "", b.unix}, {"**pglead run**, with a ledger", "**pglead run**", with}} {
		args := []string{b.pglead, "run", "--wait", "1m", "--key", key, "--", "stamp"}
		p, err := b.pair(of.name, of.against, slices.Concat(of.env, numbered()), append(slices.Clone(args), "end"), args)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
	}
	rounds := max(3, b.rounds/2)
	if err := b.handOverInTurns(pairs, rounds); err != nil {
		return err
	}
	b.printPairs("With a ledger: from the end of one command to the first instruction of the next", fmt.Sprintf("%d times each in turns.", rounds), pairs)
	b.goal("handover with a ledger against without", ratio(pairs[1].times, pairs[0].times), 1.2, " ×")
	return nil
}
