package search

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestDebug(t *testing.T) {
	trouble := os.Getenv("TROUBLE")
	if trouble == "" {
		t.Skip()
	}
	n := 0
	for _, c := range curves() {
		if c.trouble != trouble || c.seed/100%100 >= 4 {
			continue
		}
		r := c.run(Greedy{}, 0)
		reg := c.time(r.Workers)/c.time(c.truth()) - 1
		if reg > 0.03 && n < 12 {
			n++
			fmt.Printf("%v: truth %d (%.3f) chose %d (%.3f) fastest %d regret %.2f conf %.2f slower %.2f cost %.0f\n", c, c.truth(), c.time(c.truth())/1e6, r.Workers, c.time(r.Workers)/1e6, r.Fastest, reg, r.Confidence, r.Slower, r.cost/c.time(c.truth()))
			seen := map[int]int{}
			for _, q := range r.requests {
				seen[q.Workers]++
			}
			for _, e := range r.Estimates {
				fmt.Printf("   %d:%d×  %v … %v … %v  (true %v)\n", e.Workers, seen[e.Workers], e.Low, e.Mean, e.High, time.Duration(c.time(e.Workers)))
			}
		}
	}
}

func TestDebugCost(t *testing.T) {
	trouble := os.Getenv("COST")
	if trouble == "" {
		t.Skip()
	}
	for _, c := range curves() {
		if c.trouble != trouble || c.cpus != 64 || c.grows || c.seed/100%100 >= 5 {
			continue
		}
		r := c.run(Greedy{}, 0)
		x := c.run(Exhaustive{}, 0)
		if r.cost/x.cost > 0.15 {
			fmt.Printf("%v: %.2f chose %d, conf %.2f (sweep %.0f its)\n", c, r.cost/x.cost, r.Workers, r.Confidence, x.cost/c.time(c.truth()))
			its := map[int]int{}
			for _, q := range r.requests {
				its[q.Workers] += q.Iterations
			}
			for _, e := range r.Estimates {
				fmt.Printf("   %d:%d  %v (true %v)", e.Workers, its[e.Workers], e.Mean, time.Duration(c.time(e.Workers)))
			}
			fmt.Println()
		}
	}
}
