package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/sampler"
)

// A server is a PostgreSQL of this test's own, reached by a socket in its folder.
type server struct {
	t        *testing.T
	bin, dir string
	as       []string // runs a command as another user: PostgreSQL refuses to run as root
}

func startServer(t *testing.T) *server {
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // Debian's
	if path, err := exec.LookPath("initdb"); err == nil {
		programs = append(programs, path)
	}
	if len(programs) == 0 {
		t.Skip("PostgreSQL is missing")
	}
	dir, err := os.MkdirTemp("", "pg") // a short name: a socket's path is bounded
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{t: t, bin: filepath.Dir(programs[0]), dir: dir}
	if os.Getuid() == 0 {
		postgres, err := user.Lookup("postgres")
		if err != nil {
			t.Skip("PostgreSQL can't run as root, and there is no user postgres")
		}
		uid, err := strconv.Atoi(postgres.Uid)
		require.NoError(t, err)
		require.NoError(t, os.Chown(dir, uid, -1))
		s.as = []string{"runuser", "-u", "postgres", "--"}
	}
	s.do("initdb", "-D", s.data(), "-A", "trust", "-U", "postgres", "--no-sync")
	s.ctl("start")
	t.Cleanup(func() { s.ctl("stop", "-m", "immediate") })
	return s
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }
func (s *server) url() string  { return "host=" + s.dir + " user=postgres dbname=postgres" }

func (s *server) do(name string, args ...string) {
	command := append(s.as, append([]string{filepath.Join(s.bin, name)}, args...)...)
	run := exec.Command(command[0], command[1:]...)
	run.Dir = s.dir
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	require.NoError(s.t, run.Run(), "%s: %s", command, &out)
}

func (s *server) ctl(args ...string) {
	s.do("pg_ctl", append(args, "-w", "-D", s.data(), "-l", filepath.Join(s.dir, "log"), "-o", "-c listen_addresses='' -k "+s.dir)...)
}

func (s *server) exec(sql string) {
	conn, err := pgx.Connect(s.t.Context(), s.url())
	require.NoError(s.t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(s.t.Context(), sql)
	require.NoError(s.t, err)
}

// fill makes a table of n rows with gaps between their ids.
func (s *server) fill(n int) {
	s.exec("CREATE TABLE samples (id bigint PRIMARY KEY, features real[], label bigint)")
	s.exec(fmt.Sprintf("INSERT INTO samples SELECT 10*i+3, ARRAY[i, i+0.5, -i, 1], i FROM generate_series(0, %d) AS i", n-1))
}

// labels loads an epoch, checks its rows, and returns how often each label came.
func labels(t *testing.T, table *table, each func(batch int), opts ...nwt.Option) (times map[int64]int, err error) {
	l, err := nwt.NewLoader(table, append([]nwt.Option{nwt.WithBatchSize(16)}, opts...)...)
	require.NoError(t, err)
	defer l.Close()
	times = map[int64]int{}
	for b, err := range l.Epoch(t.Context(), 0) {
		if err != nil {
			return times, err
		}
		for k, class := range label.Of(b) {
			times[class]++
			i := float32(class)
			require.Equal(t, []float32{i, i + 0.5, -i, 1}, features.Of(b)[k*width:(k+1)*width])
		}
		each(b.Number())
	}
	return times, nil
}

func requireOnce(t *testing.T, times map[int64]int, n int) {
	require.Len(t, times, n)
	for class, k := range times {
		require.Equal(t, 1, k, "label %d", class)
	}
}

func TestATableIsLoaded(t *testing.T) {
	s := startServer(t)
	s.fill(1000)
	open := func(connections int32) *table {
		table, err := openTable(t.Context(), s.url(), "samples", connections)
		require.NoError(t, err)
		t.Cleanup(table.Close)
		return table
	}
	none := func(int) {}

	t.Run("by more workers than connections", func(t *testing.T) {
		table := open(2)
		times, err := labels(t, table, none, nwt.WithShuffle(1), nwt.WithWorkers(8))
		require.NoError(t, err)
		requireOnce(t, times, 1000)
	})

	t.Run("while the server restarts, again and again", func(t *testing.T) {
		times, err := labels(t, open(4), func(batch int) {
			if batch%20 == 5 {
				s.ctl("restart", "-m", []string{"fast", "immediate"}[batch/20%2])
			}
		}, nwt.WithShuffle(1), nwt.WithWorkers(3), nwt.WithRetry(8, 10*time.Millisecond))
		require.NoError(t, err)
		requireOnce(t, times, 1000)
	})

	t.Run("while connections are killed", func(t *testing.T) {
		times, err := labels(t, open(4), func(batch int) {
			if batch%10 == 5 {
				s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
			}
		}, nwt.WithShuffle(1), nwt.WithWorkers(3), nwt.WithRetry(8, 10*time.Millisecond))
		require.NoError(t, err)
		requireOnce(t, times, 1000)
	})

	t.Run("with a row twice in a batch", func(t *testing.T) {
		order, err := sampler.Weighted([]float64{1, 2, 1}, 100, 1)
		require.NoError(t, err)
		times, err := labels(t, open(2), none, nwt.WithSampler(order))
		require.NoError(t, err)
		require.Equal(t, 100, times[0]+times[1]+times[2])
	})

	t.Run("by the program", func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), []string{s.url(), "samples"}, &out))
		require.Contains(t, out.String(), "epoch 1: 1000 rows, the labels' sum is 499500")
	})

	t.Run("without rows that have gone or are bad", func(t *testing.T) {
		table := open(2)
		before := table.Fingerprint()
		s.exec("DELETE FROM samples WHERE id = 4003")
		s.exec("UPDATE samples SET features = ARRAY[1] WHERE id = 5003")
		_, err := labels(t, table, none)
		require.True(t, strings.Contains(err.Error(), "row 4003 is no longer in the table") || strings.Contains(err.Error(), "row 5003 has 1 features, want 4"), err)
		times, err := labels(t, table, none, nwt.WithErrorBudget(2))
		require.NoError(t, err)
		requireOnce(t, times, 998)
		require.NotEqual(t, before, open(1).Fingerprint())
	})
}
