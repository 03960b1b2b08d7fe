package nwt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAdviceFollowsFromWhatWasMeasured(t *testing.T) {
	const ms, mib = time.Millisecond, 1 << 20
	waiting := figures{workers: 4, cpus: 8, prefetch: 4, fixed: true, wait: 10 * ms, median: 10 * ms, p99: 12 * ms, cpu: 0.7, batchBytes: 10 * mib, memory: 200 * mib}
	with := func(change func(*figures)) figures {
		f := waiting
		change(&f)
		return f
	}
	for _, tt := range []struct {
		name string
		in   figures
		want []string
	}{
		{"nothing was measured", figures{}, nil},
		{"nothing stands out", waiting, nil},
		{"the step sets the pace", with(func(f *figures) { f.wait, f.step, f.floor = 100*time.Microsecond, 20*ms, 20*ms }), []string{
			"Training is bound by its step: an iteration takes 20.1 ms, and 20 ms with batches already loaded. Work on the model; faster loading gains at most 0.5 %.",
		}},
		{"training waits", with(func(f *figures) { f.step, f.floor = 10*ms, 10*ms }), []string{
			"Training waits for data: an iteration takes 20 ms, and would take 10 ms with batches already loaded (50 % lost).",
		}},
		{"CPUs full", with(func(f *figures) { f.cpu = 0.97 }), []string{
			"The CPUs are saturated (97 % in use): decode less or decode once, by Cached or by storing what is decoded.",
		}},
		{"CPUs full, by others too", with(func(f *figures) { f.cpu, f.others = 0.3, 0.65 }), []string{
			"The CPUs are saturated, 65 % by other processes and 30 % by this one: without those, loading may be faster.",
		}},
		{"CPUs full of others, and loading has hardly any", with(func(f *figures) { f.cpu, f.others, f.workers = 0.012, 0.97, 32 }), []string{
			"Other processes use 97 % of the CPUs and this one 1.2 %: whether loading waits for a CPU or for something else can't be told.",
		}},
		{"CPUs idle, though others compute", with(func(f *figures) { f.cpu, f.others = 0.12, 0.2 }), []string{
			"CPUs idle (32 % of 8 in use) and more workers don't help: storage, the network or a lock inside Load sets the pace.",
		}},
		{"full CPUs don't matter to a step that sets the pace", with(func(f *figures) { f.cpu, f.wait, f.step, f.floor = 0.97, 0, 20*ms, 20*ms }), []string{
			"Training is bound by its step: an iteration takes 20 ms, and 20 ms with batches already loaded. Work on the model; faster loading gains at most 0.0 %.",
		}},
		{"more workers than CPUs", with(func(f *figures) { f.cpu, f.workers = 0.12, 32 }), []string{
			"Loading waits more than it computes (it uses 12 % of 8 CPUs), so 32 workers, more than CPUs, pay off. Data on a faster disk, or Cached, would need fewer.",
		}},
		{"the highest count", with(func(f *figures) { f.highest = true }), []string{
			"4 workers is the highest count that was tried, and this process used 70 % of 8 CPUs: more workers may be faster (WithMaxWorkers).",
		}},
		{"the highest count that there was time for", with(func(f *figures) { f.highest, f.outOfTime, f.most = true, true, 64 }), []string{
			"4 workers is the highest count that there was time for, and this process used 70 % of 8 CPUs: more workers may be faster (WithTuningTime).",
		}},
		{"the highest count that was allowed, and no time", with(func(f *figures) { f.highest, f.outOfTime, f.most = true, true, 4 }), []string{
			"4 workers is the highest count that was tried, and this process used 70 % of 8 CPUs: more workers may be faster (WithMaxWorkers).",
		}},
		{"the highest count that memory allows", with(func(f *figures) { f.highest, f.bounded = true, true }), []string{
			"4 workers is the highest count that memory allows, and this process used 70 % of 8 CPUs: with smaller batches, more workers may be faster.",
		}},
		{"the highest count that promised more than alpha while training", with(func(f *figures) { f.highest, f.live, f.most = true, true, 64 }), nil},
		{"the highest count that was allowed while training", with(func(f *figures) { f.highest, f.live, f.most = true, true, 4 }), []string{
			"4 workers is the highest count that was tried, and this process used 70 % of 8 CPUs: more workers may be faster (WithMaxWorkers).",
		}},
		{"the highest count that there is", with(func(f *figures) { f.highest, f.workers, f.cpus = true, 1024, 1024 }), nil},
		{"waiting on storage", with(func(f *figures) { f.cpu = 0.12 }), []string{
			"CPUs idle (12 % of 8 in use) and more workers don't help: storage, the network or a lock inside Load sets the pace.",
		}},
		{"waiting, and no time to see what helps", with(func(f *figures) { f.cpu, f.outOfTime = 0.12, true }), []string{
			"CPUs idle (12 % of 8 in use), and time was over before it was clear whether more workers help (WithTuningTime).",
		}},
		{"reading sets the pace with as many shards as may be read at once", with(func(f *figures) { f.reading, f.interleave, f.shards = 0.97, 1024, 5000 }), []string{
			"Reading sets the pace: it goes on for 97 % of the time, 1024 shards at once, and no more can be.",
		}},
		{"reading a stream sets the pace", with(func(f *figures) { f.reading, f.interleave, f.shards, f.cpu = 0.97, 4, 64, 0.12 }), []string{
			"Reading sets the pace: it goes on for 97 % of the time, 4 shards at once. If WithInterleave(8) isn't faster, storage, the network or the reader itself is the limit.",
		}},
		{"reading a stream doesn't matter to a step that sets the pace", with(func(f *figures) {
			f.reading, f.interleave, f.shards, f.wait, f.step, f.floor = 0.97, 4, 64, 0, 20*ms, 20*ms
		}), []string{
			"Training is bound by its step: an iteration takes 20 ms, and 20 ms with batches already loaded. Work on the model; faster loading gains at most 0.0 %.",
		}},
		{"some batches are slow", with(func(f *figures) { f.p99 = 95 * ms }), []string{
			"One batch in a hundred takes 95 ms or more, the median 10 ms: WithPrefetch(10), now 4, would ride that out for 62.9 MB more memory; without WithPrefetch the depth follows need.",
		}},
		{"some batches are slow, and prefetch covers it", with(func(f *figures) { f.p99, f.prefetch = 95*ms, 10 }), nil},
		{"some batches are slow, and memory is short", with(func(f *figures) { f.p99, f.limit = 95*ms, 275*mib }), []string{
			"One batch in a hundred takes 95 ms or more, the median 10 ms: WithPrefetch(6), now 4, would ride that out for 21 MB more memory; without WithPrefetch the depth follows need.",
		}},
		{"the copy is long", with(func(f *figures) { f.transfer, f.floor = 10*ms, 10*ms }), []string{
			"The copy to the device takes 50 % of an iteration: a smaller element type (Uint8, converted on the device) or a longer step hides it.",
		}},
		{"the first batch is late", with(func(f *figures) { f.first = 3 * time.Second }), []string{
			"The first batch took 3 s, the median one 10 ms: open files and connections once, in WithWorkerInit, or expect that pause at the start of training.",
		}},
		{"the first batch waits for WithWorkerInit", with(func(f *figures) { f.first, f.inits = 3*time.Second, true }), []string{
			"The first batch took 3 s, the median one 10 ms: expect that pause for WithWorkerInit and the first samples at the start of training.",
		}},
		{"batches fill the memory", with(func(f *figures) { f.prefetch, f.limit = 16, 220*mib }), []string{
			"Memory is nearly used up (210 MB of 231 MB), 168 MB of it by batches: a smaller batch or less prefetch (now 16) frees most.",
		}},
		{"the dataset fills the memory", with(func(f *figures) { f.limit = 220 * mib }), []string{
			"Memory is nearly used up (210 MB of 231 MB), only 41.9 MB of it by batches: what the dataset itself keeps is the place to save.",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, advise(tt.in))
		})
	}
}
