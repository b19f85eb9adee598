package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

// freeAddress returns an address that no program uses now.
func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprint("127.0.0.1:", pgtest.FreePort(t))
}

// ask returns what a server sends to a client.
func ask(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Error(err)
	}
	return string(answer)
}

// taken reports an error if another program could use the address.
func taken(t *testing.T, address, when string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err == nil {
		_ = l.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%s, another program can use the address: %v", when, err)
	}
}

// TestPortIsKept: between two workers the address stays open, and its clients get an answer. Each worker gets the same
// socket, as a descriptor of a started program.
func TestPortIsKept(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	p := newPorts(Config{Log: zerolog.Nop(), Address: func(int) string { return address }})
	defer p.close()
	for range 3 {
		file := p.give(7)
		if file == nil {
			t.Fatal("no socket")
		}
		command := exec.Command("true")
		command.ExtraFiles = []*os.File{file}
		if err := command.Run(); err != nil {
			t.Fatal(err)
		}
		worker, err := net.FileListener(file)
		if err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		answered := make(chan error, 1)
		go func() {
			conn, err := worker.Accept()
			if err == nil {
				_, err = io.WriteString(conn, "the worker's answer")
				_ = conn.(*net.TCPConn).CloseWrite() // of a TCP listener
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
			answered <- err
		}()
		if answer := ask(t, address); answer != "the worker's answer" {
			t.Errorf("beside a worker: %q", answer)
		}
		if err := <-answered; err != nil {
			t.Error(err)
		}
		_ = worker.Close()
		taken(t, address, "after the end of a worker")
		p.answer(7)
		p.answer(7)
		if answer := ask(t, address); !strings.HasPrefix(answer, "HTTP/1.1 503 ") {
			t.Errorf("without a worker: %q", answer)
		}
		taken(t, address, "while the supervisor answers")
	}
}

// TestSocketDoesNotBlock: a worker that has made the socket blocking, for both processes, does not make the supervisor
// wait for a client.
func TestSocketDoesNotBlock(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	p := newPorts(Config{Log: zerolog.Nop(), Address: func(int) string { return address }})
	defer p.close()
	file := p.give(0)
	socket := file.Fd() // blocking from now on
	p.answer(0)
	flags, err := unix.FcntlInt(socket, unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %#x: %v", flags, err)
	}
	_ = file.Close()
}

// TestAnswersAreBounded: clients that send nothing keep no other client from its answer for long.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	p := newPorts(Config{Log: zerolog.Nop(), Address: func(int) string { return address }})
	defer p.close()
	if !p.listen(0, time.Now()) {
		t.Fatal("no socket")
	}
	p.answer(0)
	for range 2 * maxAnswers {
		conn, err := net.DialTimeout("tcp", address, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	pgtest.Wait(t, "an answer", func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
		answer, _ := io.ReadAll(conn)
		return strings.HasPrefix(string(answer), "HTTP/1.1 503 ")
	})
}

// TestPortInUse: a worker whose address is in use starts without it, and anew when it is free.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	log := &journal{}
	c := newCrowd(t, 4)
	c.Log = zerolog.New(log)
	c.Address = func(int) string { return other.Addr().String() }
	c.ports = newPorts(c.Config)
	listeners := 0
	c.Command = func(_ string, _, _ int, listener *os.File) *exec.Cmd {
		if listener != nil {
			listeners++
		}
		return exec.Command("cat")
	}
	const none, postgres = 5_000_000, 26
	c.add(postgres, none, 1)
	c.await(map[int]int{postgres: 1})
	if listeners != 0 || log.count("cannot listen") != 1 {
		t.Errorf("%d listeners, %d lines", listeners, log.count("cannot listen"))
	}
	_ = other.Close()
	c.openPorts(time.Now().Add(time.Hour))
	c.await(map[int]int{})
	c.await(map[int]int{postgres: 1})
	if listeners != 1 {
		t.Errorf("%d listeners after the address became free", listeners)
	}
	taken(t, other.Addr().String(), "with a worker")
}
