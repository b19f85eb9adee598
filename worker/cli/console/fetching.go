package console

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/report/units"
)

// Capturer returns a capturer that gets debug files from debuginfod, if servers are configured. The caller must call the second
// result, a function, at the end of the command. It prints on stderr how many files were not fetched in time.
func (f *DebuginfodFlags) Capturer(stderr io.Writer, debugDirs []string) (*capture.Capturer, func(), error) {
	verbose := os.Getenv(debuginfod.EnvProgress) != ""
	var mu sync.Mutex
	client, err := f.Client(func(e debuginfod.Event) {
		// Failures are always reported, other events only if the environment variable EnvProgress is set.
		if verbose || e.Kind == debuginfod.Failed {
			mu.Lock()
			defer mu.Unlock()
			Tellf(stderr, "%s", describe(e))
		}
	})
	if err != nil {
		return nil, nil, err
	}
	cfg := capture.Config{
		DebugDirs: debugDirs, LinesWait: LinesWait, AwaitNames: true,
		Kept: buildcache.Own, Scanning: announceScan(stderr),
		Report: func(err error) { Tellf(stderr, "note: %v", err) },
	}
	if client != nil {
		cfg.Remote = client // set only if client is not nil: an interface with a nil *Client is not nil
	}
	c, err := capture.New(cfg)
	return c, func() {
		if c != nil {
			c.Keep()
		}
		if client == nil {
			return
		}
		n := client.Waiting()
		client.Close()
		if n > 0 {
			Tellf(stderr, "%d debug files were still being fetched; \"pg_stat_backtrace symbols --fetch\" waits for them", n)
		}
	}, err
}

// announceScan returns a function that the caller must call when it begins to read the code of a stripped server. That function
// returns another one, which the caller must call when it has read the code. If reading takes long, a message on stderr
// explains why the user waits.
func announceScan(stderr io.Writer) func(image, folder string) (ended func(error)) {
	const long = 500 * time.Millisecond
	return func(image, folder string) func(error) {
		timer := time.AfterFunc(long, func() {
			Tellf(stderr, "reading the code of %s for names of functions; later calls find them in %s", image, folder)
		})
		return func(err error) {
			if quick := timer.Stop(); !quick && err != nil {
				Tellf(stderr, "the names are not kept, and each call reads the code again: %v", err)
			}
		}
	}
}

// describe returns an event of a download as one line.
func describe(e debuginfod.Event) string {
	what := fmt.Sprintf("%s of build-id %s", e.File, e.ID)
	switch e.Kind {
	case debuginfod.Started:
		return fmt.Sprintf("fetching %s from %s (%s)", what, e.Server, size(e.Total))
	case debuginfod.Progress:
		return fmt.Sprintf("fetching %s: %s of %s", what, size(e.Bytes), size(e.Total))
	case debuginfod.Arrived:
		return fmt.Sprintf("fetched %s: %s in %.1f s", what, size(e.Bytes), e.Took.Seconds())
	case debuginfod.Missing:
		return fmt.Sprintf("%s does not have %s", e.Server, what)
	case debuginfod.Paused:
		return fmt.Sprintf("%s has failed too often and will not be asked for %s", e.Server, e.Took)
	case debuginfod.Failed:
		return fmt.Sprintf("%s: %s: %v", e.Server, what, e.Err)
	}
	return what
}

// size formats a number of bytes; 0: the size is not known.
func size(n int64) string {
	if n <= 0 {
		return "unknown size"
	}
	return units.Size(n)
}
