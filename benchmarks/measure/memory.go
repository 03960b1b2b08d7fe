package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pss returns the bytes of this process as peers/memory.py counts them: a page that n
// processes share counts as 1/n. 0 where the kernel doesn't tell.
func pss() int64 {
	rollup, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(rollup))
	for lines.Scan() {
		if size, ok := strings.CutPrefix(lines.Text(), "Pss:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(size), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// watchMemory samples pss until stop is called, which returns the largest.
func watchMemory() (stop func() int64) {
	peak, done := int64(0), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			peak = max(peak, pss())
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return func() int64 {
		close(done)
		wg.Wait()
		return peak
	}
}
