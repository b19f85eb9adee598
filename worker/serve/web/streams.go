package web

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// streams limits the number of open streams, which last as long as the clients want. The field most is the limit for
// all streams, and the field each is the limit for one source (see the type source).
type streams struct {
	most, each int
	end        context.Context //nolint:containedctx // of all streams
	stop       context.CancelFunc

	mu      sync.Mutex
	open    int
	sources map[source]int
}

func newStreams(most int) *streams {
	s := &streams{most: most, each: max(most/sharesOfSources, 1), sources: make(map[source]int)}
	s.end, s.stop = context.WithCancel(context.Background())
	return s
}

// take takes a place for a stream of a source. It returns false if no place is free. The caller must call give at the end of
// the stream.
func (s *streams) take(of source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.most || s.sources[of] >= s.each {
		return false
	}
	s.open++
	s.sources[of]++
	return true
}

func (s *streams) give(of source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.sources[of]--; s.sources[of] == 0 {
		delete(s.sources, of)
	}
}

// checkStream is the time between two checks of a stream. A check verifies that the stream's token is still in the
// token file.
const checkStream = time.Second

// events answers with a stream of the screen's data. The stream ends when its token loses its rights, and at the end of the
// HTTP server.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	stream := s.cfg.Screen.ViewEvents
	if s.isOperator(r) {
		stream = s.cfg.Screen.OperatorEvents
	}
	if stream == nil {
		http.NotFound(w, r)
		return
	}
	s.stream(w, r, stream)
}

// stream lets a handler answer with a stream until the token of the request loses its rights. If no place is free, it
// answers with an error.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, stream http.Handler) {
	operator := s.isOperator(r)
	n := connOf(r.Context())
	of := n.from()
	if !s.streams.take(of) {
		w.Header().Set("Retry-After", "10")
		failf(w, http.StatusTooManyRequests, "too many streams at a time")
		return
	}
	defer s.streams.give(of)
	if n != nil {
		n.work()
		defer n.rest()
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.streams.end, cancel)()
	var checking sync.WaitGroup
	defer checking.Wait()
	defer cancel()
	checking.Go(func() {
		check := time.NewTicker(checkStream)
		defer check.Stop()
		for {
			select {
			case <-check.C:
				if s.refuse(r) != nil || s.isOperator(r) != operator {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	stream.ServeHTTP(w, r.WithContext(ctx))
}

// isOperator reports whether a request has an operator token.
func (s *Server) isOperator(r *http.Request) bool { return s.tokens != nil && s.tokens.operator(r) }
