package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

// made returns a measurement by hand.
func made(peer, workload, variant string, workers int, rate float64) measurement {
	return measurement{
		combination: combination{peer, workload, variant, workers},
		BatchesPerS: rate, FirstBatchS: 0.01, PeakBytes: 3e6, DatasetBytes: 1e6,
	}
}

func TestAFigureIsTheMedianOfItsRounds(t *testing.T) {
	all := []measurement{
		made("nwt", "raw", "sample", 2, 100), made("nwt", "raw", "sample", 2, 900), made("nwt", "raw", "sample", 2, 300),
		made("nwt", "raw", "sample", 4, 10), made("nwt", "raw", "sample", 4, 20),
		{combination: combination{"torch", "raw", "sample", 2}, Error: "lost"},
	}
	figs := figures(all)
	require.Len(t, figs, 2)
	require.Equal(t, 300.0, figs[0].rate)
	require.Equal(t, 3, figs[0].rounds)
	require.Equal(t, 2e6, figs[0].memory)
	require.Equal(t, 15.0, figs[1].rate)
}

func TestARateOverShardsIsThatOfTheFastestRound(t *testing.T) {
	figs := figures([]measurement{
		made("nwt", "shards", "decoded", 2, 30), made("nwt", "shards", "decoded", 2, 45), made("nwt", "shards", "decoded", 2, 40),
		made("litdata", "shards", "sample", 2, 15), made("webdataset", "shards", "pillow", 2, 40),
	})
	require.Equal(t, 45.0, figs[0].rate)
}

func TestADifferenceToPillowIsShownWhereItWasMeasured(t *testing.T) {
	none, some := made("torch", "photos", "pillow", 2, 10), made("nwt", "photos", "decoded", 2, 40)
	none.Difference, some.Difference = new(0.0), new(0.381)
	rows := strings.Split(photoTable(figures([]measurement{none, some, made("nwt", "photos", "precomputed", 2, 90)})), "\n")[2:]
	require.Contains(t, rows[0], "| precomputed | 2 | 5 760 |  | ")
	require.Contains(t, rows[1], "| decoded | 2 | 2 560 | 0.38 | ")
	require.Contains(t, rows[2], "| pillow | 2 | 640 | 0.00 | ")
}

func TestOnlyWhatMayWinIsMeasuredAgain(t *testing.T) {
	all := []measurement{
		made("nwt", "raw", "sample", 16, 1),
		made("torch", "raw", "sample", 0, 100), made("torch", "raw", "sample", 2, 71), made("torch", "raw", "sample", 4, 69),
		made("torch", "raw", "sample", 16, 1), // its memory is compared
		made("torch", "raw", "vectorised", 0, 900),
		made("spdl", "raw", "vectorised", 1, 600), // the best of its peer, and no rival to PyTorch
		made("hand", "raw", "batch", 2, 600),
		{combination: combination{"grain", "raw", "sample", 0}, Skipped: "not installed"},
	}
	var plan []combination
	for _, m := range all {
		plan = append(plan, m.combination)
	}
	again := contenders(plan, figures(all))
	require.Equal(t, []combination{plan[0], plan[1], plan[2], plan[4], plan[5], plan[7]}, again)
}

func TestTheReportTakesThePlaceBetweenTheMarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compared.md")
	require.NoError(t, os.WriteFile(path, []byte("before\n"+ordinary.marks.begin+"\nold\n"+ordinary.marks.end+"\nafter\n"), 0o644))
	r := &run{Go: "go1.26", Measurements: []measurement{
		made("nwt", "wait", "sample", 16, 230), made("grain", "wait", "sample", 16, 197),
		{combination: combination{"spdl", "wait", "sample", 16}, Skipped: "No module named 'spdl'"},
	}}
	require.NoError(t, r.writeDocument(path, ordinary))
	require.NoError(t, r.writeDocument(path, ordinary), "again, into what it has written")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "before\n") && strings.HasSuffix(string(text), "after\n"))
	require.NotContains(t, string(text), "old")
	require.Contains(t, string(text), "spdl wait sample 16: No module")
	require.Contains(t, string(text), "Grain")
}

func TestTheChartHasABarForEachLoaderAtItsBest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compared.md")
	require.NoError(t, os.WriteFile(path, []byte(photographs.marks.begin+photographs.marks.end), 0o644))
	r := &run{Date: "2026-11-28", Machine: nwt.Hardware{CPU: "A&B", GOMAXPROCS: 2}, Measurements: []measurement{
		made("torch", "photos", "pillow", 2, 9), made("torch", "photos", "torchvision", 2, 13), made("bound", "photos", "batch", 2, 50),
		made("nwt", "photos", "decoded", 2, 38), made("nwt", "photos", "decoded", 4, 40), made("nwt", "photos", "precomputed", 2, 230),
	}}
	require.NoError(t, r.writeDocument(path, photographs))
	drawn, err := os.ReadFile(filepath.Join(filepath.Dir(path), "photographs.svg"))
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(drawn, new(struct{})), "it is well formed")
	require.Contains(t, string(drawn), "<title>Photographs per second: nwt 2 560, PyTorch 832</title>")
	require.Equal(t, 2, strings.Count(string(drawn), `height="22"`), "bars")
	require.Contains(t, string(drawn), "2 CPUs (A&amp;B), 2026-11-28")
}

// ratio returns how many times as fast as the fastest other loader nwt is, by a table of docs/compared.md. If
// variant isn't "", it is the variant of nwt that counts.
func ratio(t *testing.T, workload, variant string) float64 {
	t.Helper()
	compared, err := os.ReadFile("../../docs/compared.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(compared), "### "+workloads[placeOf(workload)].title+"\n")
	require.True(t, found, workload)
	rate, ours, others := -1, 0.0, 0.0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		switch {
		case strings.HasPrefix(line, "#"):
			return ours / others
		case rate < 0:
			rate = slices.IndexFunc(cells, func(cell string) bool { return strings.HasSuffix(cell, "s/s ") })
		case len(cells) > rate && !strings.HasPrefix(line, "| *d") && !strings.HasPrefix(line, "| ---"):
			n, err := strconv.ParseFloat(strings.Join(strings.Fields(cells[rate]), ""), 64)
			require.NoError(t, err, line)
			if !strings.Contains(cells[1], "**nwt**") {
				others = max(others, n)
			} else if variant == "" || strings.Contains(cells[2], variant) {
				ours = max(ours, n)
			}
		}
	}
	return ours / others
}

func TestTheReadmeQuotesTheTables(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, quoted := range []string{
		fmt.Sprintf("[%.1f × the photographs per second](docs/compared.md#photographs) of the fastest other loader that we could write", ratio(t, "photos", "decoded")),
		fmt.Sprintf("%.1f × as fast as PyTorch's DataLoader if samples are arrays of 150 kB, and %.2f × if Pillow decodes photographs", ratio(t, "own-large", ""), ratio(t, "own-pillow", "")),
	} {
		require.Contains(t, string(readme), quoted)
	}
}

func TestADocumentWithoutMarksIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compared.md")
	require.NoError(t, os.WriteFile(path, []byte("prose\n"), 0o644))
	require.ErrorContains(t, (&run{}).writeDocument(path, ordinary), "marks are missing")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "prose\n", string(text))
}
