//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// herd makes many nodes start at the same instant on a server that has room for
// few of them.
func (b *bench) herd() error {
	bare := as(b.unix, "app")
	number := slices.Concat(bare, numbered())
	section(fmt.Sprintf("%d nodes at the same instant", b.nodes),
		"max_connections = 100, and no node is a superuser. The one that gets the lock keeps it until all others have their answer; in the last row each runs `true` in its turn. Beside them an application logs in twice a second.",
		"| | ran | held elsewhere (75) | no connection (69) | other | first answer s | p50 s | last s | logins of the application | their p50 ms | refused at s |\n|---|---|---|---|---|---|---|---|---|---|---|")
	for _, of := range []struct {
		name string
		env  []string
		args []string
		all  bool
	}{
		{"C and libpq", bare, []string{"floor", "try", key, "stamp", "end"}, false},
		{"**pglead run** --wait 0", number, []string{b.pglead, "run", "--key", key, "--wait", "0", "--", "stamp", "end"}, false},
		{"**pglead run** --wait 5m", number, []string{b.pglead, "run", "--key", key, "--wait", "5m", "--", "true"}, true},
	} {
		ctx, over := context.WithCancel(context.Background())
		counted := make(chan logins, 1)
		go func() { counted <- logIn(ctx, asApp(b.server), 500*time.Millisecond, math.MaxInt) }()
		statuses, times, err := b.fire(of.env, of.args, of.all)
		over()
		app := <-counted
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		ran, held, unreachable := statuses[0], statuses[75], statuses[69]
		other := b.nodes - ran - held - unreachable
		last := quantile(times, 1).Seconds()
		fmt.Printf("| %s | %d | %d | %d | %d | %.2f | %.2f | %.2f | %d of %d | %s | %s |\n", of.name, ran, held, unreachable, other,
			quantile(times, 0).Seconds(), quantile(times, .5).Seconds(), last, app.done, app.tried, ms(quantile(app.times, .5)), app.refusals())
		if flags, ours := strings.CutPrefix(of.name, "**pglead run** "); ours {
			b.goal(fmt.Sprintf("nodes without an answer, of %d at once, %s", b.nodes, flags), float64(other), 0, "")
		}
		if of.all {
			b.goal(fmt.Sprintf("until all of %d at once have run", b.nodes), last, 90, " s")
			b.goal(fmt.Sprintf("nodes that did not run, of %d at once, --wait 5m", b.nodes), float64(b.nodes-ran), 0, "")
			b.goal("logins of the application refused beside them", float64(app.tried-app.done), 0, "")
		}
	}
	return nil
}

// fire makes all nodes wait at a gate, opens it, and counts how they end. Unless
// all are to run, the winner's command ends when all others have.
func (b *bench) fire(env, args []string, all bool) (statuses map[int]int, times []time.Duration, err error) {
	gate, open, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	in, proceed, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	shell, err := b.program(env, append([]string{"sh", "-c", `read x <&3; exec "$@" 3<&-`, "node"}, args...)...)
	if err != nil {
		return nil, nil, err
	}
	shell.quiet = true
	var nodes []*os.Process
	for range b.nodes {
		node, err := shell.start(in, nil, gate)
		if err != nil {
			return nil, nil, err
		}
		nodes = append(nodes, node)
	}
	_ = gate.Close()
	_ = in.Close()
	time.Sleep(time.Second)
	var mu sync.Mutex
	var waits sync.WaitGroup
	statuses = map[int]int{}
	began := time.Now()
	for _, node := range nodes {
		waits.Go(func() {
			state, err := node.Wait()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				return
			}
			statuses[state.ExitCode()]++
			times = append(times, time.Since(began))
			ended := 0
			for n := range maps.Values(statuses) {
				ended += n
			}
			if ended == b.nodes-1 && !all {
				_ = proceed.Close()
			}
		})
	}
	_ = open.Close()
	waits.Wait()
	if all {
		_ = proceed.Close()
	}
	return statuses, times, nil
}
