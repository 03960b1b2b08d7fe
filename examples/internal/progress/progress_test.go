package progress

import (
	"bytes"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func TestALogGetsAPlainLineNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		report, done := Show(&log)
		for second := range 12 {
			report(nwt.Progress{Phase: "measuring", Workers: second / 4, Done: float64(second) / 12, Left: time.Duration(12-second) * time.Second})
			time.Sleep(time.Second)
		}
		done()
		require.Equal(t, ""+
			"  0% measuring, workers: 0, 12s left\n"+
			" 42% measuring, workers: 1, 7s left\n"+
			" 83% measuring, workers: 2, 2s left\n", log.String())
	})
}

func TestAFileIsALogToo(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	defer f.Close()
	report, done := Show(f)
	report(nwt.Progress{Phase: "measuring", Workers: 3, Done: 1})
	done()
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, "100% measuring, workers: 3\n", string(text))
}

func TestABarLeavesATerminalCleared(t *testing.T) {
	for _, last := range []float64{0.4, 1} {
		var terminal bytes.Buffer
		report, done := bar(&terminal)
		report(nwt.Progress{Phase: "measuring", Workers: 2, Done: 0.25})
		require.Contains(t, terminal.String(), "measuring, workers: 2")
		report(nwt.Progress{Phase: "measuring", Workers: 4, Done: last})
		done()
		require.NotContains(t, terminal.String(), "\n")
		require.Regexp(t, `\r +\r$`, terminal.String(), "the bar's line is blank when the tuning ends")
	}
}
