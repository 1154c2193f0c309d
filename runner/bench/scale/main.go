// Command scale simulates, in virtual time, the load of many nodes on one server: cron, CI and
// daemons that stand by. It uses pglead's own rules (runner/crowd, runner/leasetime,
// runner/pace) and measured costs (costs.go), and prints the tables of testdata/bench/SCALE.md,
// which explains them:
//
//	go run ./runner/bench/scale
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	seed := flag.Uint64("seed", 1, "of the random source")
	most := flag.Int("nodes", 100000, "the most nodes to simulate")
	svg := flag.String("svg", "", "draw the chart into this `file`")
	flag.Parse()
	p := play(*seed, *most)
	p.print(os.Stdout)
	if *svg == "" {
		return
	}
	if err := os.WriteFile(*svg, []byte(p.draw()), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}
