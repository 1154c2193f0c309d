package main

import "time"

// costs are what one of each thing takes, as testdata/bench/SCALE.md says how it was
// measured: go run ./runner/bench -only costs.
type costs struct {
	// Of the server's processors.
	login       time.Duration // a login with its trial, an answer, and the end of the session
	full        time.Duration // a login that a full server refuses
	draw        time.Duration // a token
	release     time.Duration // the end of a run
	beat        time.Duration // a heartbeat, or another try
	look        time.Duration // a look, and
	lookEach    time.Duration // for each session that there is
	wake        time.Duration // a NOTIFY, for each that listens
	pooledTrial time.Duration // a trial through a pooler
	// Of the pooler's: a login with its trial, and another trial.
	pooler, poolerTrip time.Duration
	// Of a node's: until it asks, and for the command.
	nodeStart, nodeRun time.Duration
	// Bytes.
	tokenWAL, wordWAL float64
}

func measured() costs {
	const us = time.Microsecond
	return costs{
		login: 8200 * us, full: 1500 * us, draw: 1200 * us, release: 700 * us,
		beat: 100 * us, look: 250 * us, lookEach: 1500 * time.Nanosecond, wake: 30 * us,
		pooledTrial: 300 * us, pooler: 300 * us, poolerTrip: 60 * us,
		nodeStart: 8 * time.Millisecond, nodeRun: 6 * time.Millisecond,
		tokenWAL: 150, wordWAL: 50,
	}
}
