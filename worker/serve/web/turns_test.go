package web

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// TestTurns: a source has half of the places, and gets a place back when a request ends.
func TestTurns(t *testing.T) {
	turns := newTurns(4)
	one, other := source{kind: localUser, user: 1}, source{kind: network, prefix: netip.MustParsePrefix("192.0.2.1/32")}
	var gives []func()
	for i, c := range []struct {
		source source
		want   bool
	}{{one, true}, {one, true}, {one, false}, {other, true}, {other, true}, {source{kind: localUser}, false}} {
		give, ok := takeTurn(t.Context(), turns, c.source, 0)
		if ok != c.want {
			t.Fatalf("place %d: the places are not shared by halves", i+1)
		}
		if ok {
			gives = append(gives, give)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := takeTurn(ctx, turns, one, soon); ok {
		t.Error("a place for a client that has gone")
	}
	if _, ok := takeTurn(t.Context(), turns, one, time.Millisecond); ok {
		t.Error("a place beyond the share of a source")
	}
	time.AfterFunc(time.Millisecond, gives[0])
	if _, ok := takeTurn(t.Context(), turns, one, soon); !ok {
		t.Error("a request that waited has no place")
	}
}

// TestRequestsShared: a client whose requests last long takes no place of another client.
func TestRequestsShared(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 10)
	slow := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		started <- struct{}{}
		<-release
	})
	s := New(Config{
		Metrics: slow, Screen: &Screen{Files: slow, View: slow, Operator: slow},
		Limits: Limits{Requests: 4, Screens: 4, Wait: 50 * time.Millisecond},
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepting := newConns(listener, s.limits, nil)
	accepting.source = func(c net.Conn) source { // each address of this host
		remote, _ := addrPort(c.RemoteAddr())
		return networkSource(remote.Addr())
	}
	server := &http.Server{Handler: s.Handler(), ConnContext: connContext, ConnState: state, ReadHeaderTimeout: soon}
	go func() { _ = server.Serve(accepting) }()
	t.Cleanup(func() { _ = server.Close() })
	t.Cleanup(func() { close(release) })

	answered := make(chan int, 10)
	ask := func(client byte, path string) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, client)}}
		c := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}, Timeout: soon}
		go func() {
			answer, err := c.Get("http://" + listener.Addr().String() + path)
			if err != nil { // at the end of the test
				answered <- 0
				return
			}
			_ = answer.Body.Close()
			answered <- answer.StatusCode
		}()
	}
	for _, path := range []string{"/metrics", screenData} {
		for range 4 {
			ask(1, path)
		}
		for range 4 {
			select {
			case <-started:
			case <-answered: // the client has too many requests
			}
		}
		ask(2, path)
		select {
		case <-started:
		case status := <-answered:
			t.Errorf("%s: another client gets status %d", path, status)
		}
	}
}
