package main

import "time"

// costs are what one of each thing takes. go run ./runner/bench -only costs has measured them;
// testdata/bench/SCALE.md says when, and on which machine.
type costs struct {
	// Processor time of the server.
	login       time.Duration // a login with the first try, an answer, and the end of the session
	full        time.Duration // a login that a full server refuses
	draw        time.Duration // a token
	release     time.Duration // of the lock, at the end of a run
	beat        time.Duration // a heartbeat, whatever it asks, another try, or another short question
	look        time.Duration // a look,
	lookEach    time.Duration // and more for each session of the server
	wake        time.Duration // a NOTIFY, for each session that listens
	pooledTrial time.Duration // a try through a pooler
	// Processor time of the pooler: for a login with the first try, and for another try.
	pooler, poolerTrip time.Duration
	// Processor time of a node: until it logs in, and for the command.
	nodeStart, nodeRun time.Duration
	// Until it logs in, where 1,000 start on one machine. This one is not measured but fitted
	// to the 8.7 s that 1,000 real nodes took with --wait 0 on a quiet machine.
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
		nodeStart: 6 * time.Millisecond, nodeRun: 5 * time.Millisecond, nodeCrowded: 10 * time.Millisecond,
		tokenWAL: 105, wordWAL: 40,
	}
}
