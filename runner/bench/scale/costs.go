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
	// Until it asks, where 1,000 start on one machine.
	nodeCrowded time.Duration
	// Bytes.
	tokenWAL, wordWAL float64
}

func measured() costs {
	const us = time.Microsecond
	return costs{
		login: 7000 * us, full: 3500 * us, draw: 1900 * us, release: 1000 * us,
		beat: 350 * us, look: 390 * us, lookEach: 1500 * time.Nanosecond, wake: 70 * us,
		pooledTrial: 1200 * us, pooler: 600 * us, poolerTrip: 100 * us,
		nodeStart: 6 * time.Millisecond, nodeRun: 5 * time.Millisecond, nodeCrowded: 17 * time.Millisecond,
		tokenWAL: 105, wordWAL: 40,
	}
}
