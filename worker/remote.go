package worker

import (
	"os"
	"sync"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/naming/debuginfod"
)

// newCapturer sets w.capturer, with a debuginfod client if one is configured.
// It returns a function that must be called at the end of the worker. sameUser
// says whether the worker has had its present user since its start.
func (w *Worker) newCapturer(sameUser bool) (func(), error) {
	cfg := capture.Config{
		Concurrency: w.cfg.Concurrency, DebugDirs: w.cfg.DebugDirs,
		Report: func(err error) { w.log.Warn().Err(err).Msg("names or source lines are missing") },
		Wanted: w.downloads.wanted, Kept: buildcache.Own,
	}
	done := func() {}
	// Set it only if client is not nil, because an interface that contains a nil *Client is not nil.
	if client := w.debuginfodClient(sameUser); client != nil {
		cfg.Remote, done = client, client.Close
	}
	var err error
	if w.capturer, err = capture.New(cfg); err != nil {
		done()
		return done, err
	}
	return func() {
		w.capturer.Keep()
		done()
	}, nil
}

// debuginfodClient returns the client; nil: no client is configured, or its
// cache cannot be used. The cache is the configured one or, without one, that
// of the worker's user (see debuginfod.ServiceCacheDir). If the cache cannot be
// used, debuginfodClient logs the reason, and answers lack names.
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

// tellDebuginfod logs an event of the debuginfod client. It does not log each progress of a download; see downloads.due.
func (w *Worker) tellDebuginfod(e debuginfod.Event) {
	due := w.downloads.due(&e)
	about := w.log.With().Str("server", e.Server).Str("build_id", e.ID).Str("kind", string(e.File))
	if image := w.downloads.image(e.ID); image != "" {
		about = about.Str("image", image)
	}
	log := about.Logger()
	switch e.Kind {
	case debuginfod.Started:
		log.Info().Int64("bytes", e.Total).Msg("fetching a debug file")
	case debuginfod.Progress:
		if !due {
			return
		}
		event := log.Info().Int64("bytes", e.Bytes)
		if e.Total > 0 && e.Bytes > 0 {
			left := time.Duration(float64(e.Took) * float64(e.Total-e.Bytes) / float64(e.Bytes))
			event.Int64("of", e.Total).Int64("percent", 100*e.Bytes/e.Total).Dur("left_ms", left.Round(time.Second))
		}
		event.Dur("took_ms", e.Took).Msg("still fetching a debug file")
	case debuginfod.Arrived:
		log.Info().Int64("bytes", e.Bytes).Dur("took_ms", e.Took).Msg("a debug file has arrived")
	case debuginfod.Missing:
		log.Debug().Dur("took_ms", e.Took).Msg("the server does not have a debug file")
	case debuginfod.Failed:
		log.Warn().Err(e.Err).Dur("took_ms", e.Took).Msg("a debug file cannot be fetched")
	case debuginfod.Paused:
		log.Warn().Dur("pause_ms", e.Took).
			Msg("the debuginfod server fails again and again, and is left alone")
	}
}

// downloads has the names and the state of the downloads about which tellDebuginfod logs lines. Its zero value is ready.
type downloads struct {
	mu sync.Mutex
	// images are the names of the images whose debug files were requested, by build-id.
	images map[string]string
	// next is the duration of a download at which its progress is logged again, by build-id.
	next map[string]time.Duration
}

const (
	// maxDownloads is the largest number of builds in each map of downloads.
	maxDownloads = 1024
	// The progress of a download is logged first after leastProgress. Each next line follows after half of the time that the
	// download has taken until then, but after at least leastProgress and at most mostProgress.
	leastProgress, mostProgress = 5 * time.Second, time.Minute
)

// wanted stores the name of the image with the build-id id, whose debug file the capturer requests.
func (d *downloads) wanted(image, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.images == nil || len(d.images) >= maxDownloads {
		d.images = make(map[string]string)
	}
	d.images[id] = image
}

// image returns the name of the image with this build-id; empty: it is not known.
func (d *downloads) image(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.images[id]
}

// due reports whether an event is to be logged. It returns true for every event except Progress. For Progress, it returns
// false until the time for the next line about this download.
func (d *downloads) due(e *debuginfod.Event) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case e.Kind != debuginfod.Progress:
		delete(d.next, e.ID)
		return true
	case e.Took < max(d.next[e.ID], leastProgress):
		return false
	case d.next == nil || len(d.next) >= maxDownloads:
		d.next = make(map[string]time.Duration)
	}
	d.next[e.ID] = e.Took + min(max(e.Took/2, leastProgress), mostProgress)
	return true
}
