package verb

import (
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/serve/spool"
)

// fail answers a request with an error. It writes a line to the log and a row to the journal.
func (s *Service) fail(req spool.Request, began time.Time, err error) spool.Answer {
	a := failure(0, err)
	s.log1(req, func(e *zerolog.Event) {
		e.Str("sqlstate", a.SQLState).AnErr("error", err).Msg("request failed")
	})
	s.cfg.Journal.Add(req.Database, journalRow(req, began, captured{}, a))
	return a
}

// log1 writes a line about a request to the log, unless there are too many lines about its role. The lines that are
// left out are counted, and the next line has their number.
func (s *Service) log1(req spool.Request, send func(*zerolog.Event)) {
	if req.Superuser {
		send(s.event(req))
		return
	}
	leftOut, ok := s.cfg.Lines.Take(req.Caller)
	if !ok {
		return
	}
	event := s.event(req)
	if leftOut > 0 {
		event.Int("left_out", leftOut)
	}
	send(event)
}

func (s *Service) event(req spool.Request) *zerolog.Event {
	//nolint:zerologlint // the caller sends it
	return s.cfg.Log.Info().Str("verb", req.Verb).Str("role", req.CallerName).Str("database", req.Database).
		Int("backend", req.Backend)
}
