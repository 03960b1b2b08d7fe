package host

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// queued returns how long each thread of this process has waited for a CPU since it began: the second
// figure of schedstat. Kernels without this figure have no such file.
func queued() map[int]time.Duration {
	waits := make(map[int]time.Duration)
	for _, tid := range threads() {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
		if fields := bytes.Fields(text); len(fields) > 1 {
			ns, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			waits[tid] = time.Duration(ns)
		}
	}
	return waits
}
