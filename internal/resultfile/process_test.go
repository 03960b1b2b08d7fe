package resultfile

import (
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	processes = 4
	rounds    = 10
)

// TestProcess is what each process of the tests below runs.
func TestProcess(t *testing.T) {
	role, path := os.Getenv("NWT_TEST_RESULTS_ROLE"), os.Getenv("NWT_TEST_RESULTS_PATH")
	rank, _ := strconv.Atoi(os.Getenv("NWT_TEST_RESULTS_RANK"))
	c := File{Path: path, Log: slog.New(slog.NewTextHandler(failOnLog{t}, nil))}
	switch role {
	case "store":
		for i := range rounds {
			c.Store(t.Context(), testKey(distinct(rank, i)), json.RawMessage(strconv.Itoa(rank)))
			_, ok := c.Lookup(testKey(distinct(rank, i)))
			require.True(t, ok)
		}
	case "tune":
		require.NoError(t, c.WhileTuning(t.Context(), func() error {
			if _, ok := c.Lookup(testKey(1000)); ok {
				return nil
			}
			// Fails in the second process that tunes.
			f, err := os.OpenFile(path+".tuned", os.O_CREATE|os.O_EXCL, 0o644)
			if err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
			c.Store(t.Context(), testKey(1000), json.RawMessage("14"))
			return f.Close()
		}))
	default:
		t.Skip("run by other tests, in processes of its own")
	}
}

// distinct batch sizes: none within a factor of another.
func distinct(rank, i int) int64 { return 1 << (1 + rank*rounds + i) }

type failOnLog struct{ t *testing.T }

func (f failOnLog) Write(line []byte) (int, error) {
	f.t.Errorf("logged: %s", line)
	return len(line), nil
}

func runProcesses(t *testing.T, role, path string) {
	self, err := os.Executable()
	require.NoError(t, err)
	var wg sync.WaitGroup
	for rank := range processes {
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestProcess$")
		cmd.Env = append(os.Environ(), "NWT_TEST_RESULTS_ROLE="+role, "NWT_TEST_RESULTS_PATH="+path,
			"NWT_TEST_RESULTS_RANK="+strconv.Itoa(rank))
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", rank, err, out)
			}
		})
	}
	wg.Wait()
}

func TestProcessesThatStoreAtOnceLoseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "tuning.json")
	runProcesses(t, "store", path)
	file, err := read(path)
	require.NoError(t, err)
	require.Len(t, file.Entries, processes*rounds)
	for rank := range processes {
		for i := range rounds {
			entry, ok := file.nearest(testKey(distinct(rank, i)))
			require.True(t, ok)
			require.Equal(t, strconv.Itoa(rank), string(entry.Value))
		}
	}
	left, err := filepath.Glob(path + "*.tmp")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestOfProcessesOnAHostOnlyTheFirstTunes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning.json")
	runProcesses(t, "tune", path)
	require.FileExists(t, path+".tuned")
}
