package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// As docker pause, scontrol suspend and a laptop's lid do. The process that is paused is this
// test once more.
func TestCallsOfAPausedProcessAreNotGivenUp(t *testing.T) {
	const child = "NWT_TEST_PAUSED"
	slowly := func() {
		for range 20 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	samples := func() nwt.Dataset {
		return kit.Numbered(40, func(context.Context, int, *nwt.Sample) error { slowly(); return nil })
	}
	shards := func() nwt.Dataset {
		return nwt.Streamed(&kit.Breaking{Shelves: kit.NewShelves(10, 10, 10, 10), OnNext: func(int, int) error { slowly(); return nil }})
	}
	datasets := map[string]func() nwt.Dataset{"samples": samples, "shards": shards}
	if ds := datasets[os.Getenv(child)]; ds != nil {
		l := kit.NewLoader(t, ds(), nwt.WithBatchSize(4), nwt.WithWorkers(4), nwt.WithTimeout(2*time.Second), nwt.WithErrorBudget(40), kit.Silent)
		n := 0
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			if n == 0 {
				fmt.Println("it loads")
			}
			n += b.Len()
		}
		fmt.Println("loaded", n)
		return
	}
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	for what := range datasets {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestCallsOfAPausedProcessAreNotGivenUp$")
			cmd.Env = append(os.Environ(), child+"="+what)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewReader(out)
			first, err := lines.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "it loads\n", first)
			require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(5 * time.Second)
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
			rest, err := io.ReadAll(lines)
			require.NoError(t, err)
			require.NoError(t, cmd.Wait())
			require.True(t, strings.HasPrefix(string(rest), "loaded 40\n"), string(rest))
		})
	}
}
