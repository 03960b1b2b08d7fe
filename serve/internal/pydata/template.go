//go:build unix

package pydata

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A template is the process that has read what makes the samples, and that forks a child for each worker. It
// alone waits for children and kills them, and it ends with its connection.
type template struct {
	cmd    *exec.Cmd
	conn   *net.UnixConn
	reader sync.WaitGroup // the goroutine of read, which close joins

	sending sync.Mutex // of what is sent over conn

	mu       sync.Mutex
	children map[uint32]int         // guarded by mu; the pid of each child that lives
	asked    map[uint32]chan answer // guarded by mu; who is told that a child has begun, and that it has ended
	next     uint32                 // guarded by mu; the number of the next child
	ended    error                  // guarded by mu; why no child will come any more
}

// An answer is a line that a template sends.
type answer struct {
	Ready  bool
	Failed string
	Child  *uint32
	PID    int
	Ended  *int
}

const (
	forks = 1
	kills = 2
)

// startTemplate starts a template and waits until it is ready.
func startTemplate(ctx context.Context, c *Config) (*template, error) {
	conn, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	t := &template{conn: conn, children: map[uint32]int{}, asked: map[uint32]chan answer{}}
	t.cmd = exec.Command(c.Command[0], c.Command[1:]...)
	t.cmd.Stdout, t.cmd.Stderr, t.cmd.ExtraFiles = c.Stdout, c.Stderr, []*os.File{theirs}
	// A child has one thread: the workers are what runs side by side. The program that the template executes once
	// more finds no GPU and no other ranks: it must neither take memory there nor join them a second time.
	t.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=", "MASTER_ADDR=")
	err = t.cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("the template can't be started: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	lines := json.NewDecoder(conn)
	var first answer
	_, err = conn.Write(c.Setup)
	if told := lines.Decode(&first); err == nil || told == nil {
		err = told // it says why it doesn't read on
	}
	if err == nil && first.Failed != "" {
		err = errors.New(first.Failed)
	}
	if err != nil {
		_ = conn.Close()
		if status := t.cmd.Wait(); status != nil && first.Failed == "" {
			err = fmt.Errorf("the template has ended: %w", status)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	t.reader.Go(func() { t.read(lines) })
	return t, nil
}

// read takes what the template says, until it ends.
func (t *template) read(lines *json.Decoder) {
	for {
		var a answer
		if err := lines.Decode(&a); err != nil {
			break
		}
		if a.Child == nil {
			continue
		}
		t.mu.Lock()
		wait := t.asked[*a.Child]
		if a.PID != 0 {
			t.children[*a.Child] = a.PID
		} else {
			delete(t.asked, *a.Child)
		}
		if a.Ended != nil {
			delete(t.children, *a.Child)
		}
		t.mu.Unlock()
		if wait != nil {
			wait <- a
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = errors.New("the template has ended")
	for _, pid := range t.children { // nobody else would; nobody has waited for them, so the pids are theirs
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	clear(t.children)
	for _, wait := range t.asked {
		close(wait)
	}
	clear(t.asked)
}

// fork asks for a child, which gets one end of a connection and the memory. What it returns tells how the child
// has ended.
func (t *template) fork(ctx context.Context, conn, memory *os.File) (number uint32, end <-chan answer, err error) {
	wait := make(chan answer, 2)
	t.mu.Lock()
	if err := t.ended; err != nil {
		t.mu.Unlock()
		return 0, nil, err
	}
	number = t.next
	t.next++
	t.asked[number] = wait
	t.mu.Unlock()
	if err := t.send(forks, number, int(conn.Fd()), int(memory.Fd())); err != nil {
		return 0, nil, err
	}
	var a answer
	var ok bool
	select {
	case a, ok = <-wait:
	case <-ctx.Done():
		t.kill(number)
		return 0, nil, context.Cause(ctx)
	}
	switch {
	case !ok:
		return 0, nil, errors.New("the template has ended")
	case a.Failed != "":
		return 0, nil, errors.New(a.Failed)
	}
	return number, wait, nil
}

func (t *template) send(what, number uint32, descriptors ...int) error {
	head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, what), number)
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	t.sending.Lock()
	defer t.sending.Unlock()
	_, _, err := t.conn.WriteMsgUnix(head, rights, nil)
	return err
}

// kill ends a child. If the template is gone, so is the child.
func (t *template) kill(number uint32) { _ = t.send(kills, number) }

// pids returns the processes that live.
func (t *template) pids() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil {
		return nil
	}
	all := []int{t.cmd.Process.Pid}
	for _, pid := range t.children {
		all = append(all, pid)
	}
	slices.Sort(all)
	return all
}

func (t *template) isGone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended != nil
}

// close ends the template and with it its children. One that doesn't end within seconds may be stopped: it is
// killed, and read kills its children.
func (t *template) close() {
	defer time.AfterFunc(5*time.Second, func() { _ = t.cmd.Process.Kill() }).Stop()
	_ = t.conn.CloseWrite()
	t.reader.Wait()
	_ = t.cmd.Wait()
	_ = t.conn.Close()
}

// socketpair returns two ends of a connection: one's own, and a file for a process.
func socketpair() (own *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	mine := os.NewFile(uintptr(fds[0]), "socket")
	defer mine.Close()
	theirs = os.NewFile(uintptr(fds[1]), "socket")
	conn, err := net.FileConn(mine)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
