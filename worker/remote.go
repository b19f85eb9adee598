package worker

import (
	"os"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/debuginfod"
)

// newCapturer makes the capturer, with a debuginfod client where one is
// configured, and returns what closes that. sameUser says whether the worker
// has been its user from its start on.
func (w *Worker) newCapturer(sameUser bool) (func(), error) {
	cfg := capture.Config{
		Concurrency: w.cfg.Concurrency, DebugDirs: w.cfg.DebugDirs,
		Report: func(err error) { w.log.Warn().Err(err).Msg("names or source lines are missing") },
	}
	done := func() {}
	// A nil *Client would be no nil Remote.
	if client := w.debuginfodClient(sameUser); client != nil {
		cfg.Remote, done = client, client.Close
	}
	var err error
	if w.capturer, err = capture.New(cfg); err != nil {
		done()
	}
	return done, err
}

// debuginfodClient makes the client. Its cache is the one that is configured,
// else that of the user whom the worker has become (see
// debuginfod.ServiceCacheDir). A cache that cannot be used is told, and the
// worker goes on without: names are worth less than answers.
func (w *Worker) debuginfodClient(sameUser bool) *debuginfod.Client {
	cfg := w.cfg.Debuginfod
	if cfg.Off() {
		return nil
	}
	var err error
	if cfg.CacheDir == "" {
		cfg.CacheDir, err = debuginfod.ServiceCacheDir(os.Getenv, os.Geteuid(), sameUser)
	}
	cfg.OnEvent = w.tellDebuginfod
	var client *debuginfod.Client
	if err == nil {
		client, err = debuginfod.New(cfg)
	}
	if err != nil {
		w.log.Warn().Err(err).Msg("no debuginfod: its cache cannot be used")
		return nil
	}
	w.log.Info().Str("cache", client.Dir()).Int("servers", len(cfg.URLs)).Msg("debuginfod")
	return client
}

// tellDebuginfod logs what a debuginfod client does.
func (w *Worker) tellDebuginfod(e debuginfod.Event) {
	log := w.log.With().Str("server", e.Server).Str("build_id", e.ID).Str("kind", string(e.File)).Logger()
	switch e.Kind {
	case debuginfod.Started:
		log.Info().Int64("bytes", e.Total).Msg("fetching a debug file")
	case debuginfod.Progress:
		log.Info().Int64("bytes", e.Bytes).Int64("of", e.Total).Dur("took", e.Took).Msg("fetching a debug file")
	case debuginfod.Arrived:
		log.Info().Int64("bytes", e.Bytes).Dur("took", e.Took).Msg("a debug file has arrived")
	case debuginfod.Missing:
		log.Debug().Dur("took", e.Took).Msg("the server does not have a debug file")
	case debuginfod.Failed:
		log.Warn().Err(e.Err).Dur("took", e.Took).Msg("a debug file cannot be fetched")
	case debuginfod.Paused:
		log.Warn().Dur("pause", e.Took).Msg("the debuginfod server fails again and again, and is left alone")
	}
}
