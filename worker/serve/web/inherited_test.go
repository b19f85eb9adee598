package web

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInheritedSocket: a server takes the socket of its parent process, and leaves it open at its end.
func TestInheritedSocket(t *testing.T) {
	parent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = parent.Close() }()
	file, err := parent.(*net.TCPListener).File() // it listens on TCP
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	address, err := ParseAddress(parent.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		log, _, failed := logged()
		server := New(Config{Address: address, Inherited: file, Log: log})
		done := make(chan struct{})
		go func() { defer close(done); server.Run(ctx) }()
		client := http.Client{Timeout: soon, Transport: &http.Transport{DisableKeepAlives: true}}
		answer, err := client.Get("http://" + address.String() + "/healthz") // it has a timeout
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Error(answer.Status)
		}
		cancel()
		<-done
		select {
		case err := <-failed:
			t.Error(err)
		default:
		}
		if other, err := net.Listen("tcp", address.String()); !errors.Is(err, unix.EADDRINUSE) {
			_ = other.Close()
			t.Errorf("another program can use the address: %v", err)
		}
	}
}
