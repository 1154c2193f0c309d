// Package torture holds only a test: it lets several hosts, which are
// network namespaces, contend for one lock, breaks what can break, and checks
// from the time stamps of the commands themselves that no two ever ran at once.
//
//	go test ./runner/torture                                      short, as root
//	TORTURE='-rounds 100' go test ./runner/torture -timeout 0 -v  long
//
// The long run is of one way of locking: -mode run, mixed, shared, slots, keys, transaction, each
// or lead. TORTURE may also hold -lease 15s -lock-delay 10s -seed 42 -only partition -hostile=false
// -svg run.svg -logs directory, -lost-grace 1s and -ledger: then the database has a ledger, and one
// contender makes one first try after the other through all faults. Runs that share a file -results
// FILE add up: the table covers all of them. Several may run side by side, and ^C ends one after
// the current fault, with its verdict. In mode mixed there are no strangers: the old version
// believes them.
package torture
