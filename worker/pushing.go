package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/serve/export"
	"pg_stat_backtrace/worker/serve/metrics"
)

// ExportConfig says to which receivers the worker pushes profiles. With the zero value, the worker pushes no profiles.
type ExportConfig struct {
	// Pyroscope, OTLP, HeaderFile, Interval and Mode: see the fields of export.Config with these names.
	Pyroscope, OTLP, HeaderFile string
	Interval                    time.Duration
	Mode                        string
	// Cluster is the name of the server for the receiver; empty: the host's name and the data directory.
	Cluster string
	// SpoolDir is the folder for profiles that were not sent yet; empty: a folder beside the cache of debug files.
	SpoolDir string
}

// On reports whether a receiver is configured.
func (c ExportConfig) On() bool { return c.Pyroscope != "" || c.OTLP != "" }

// Check returns an error if an option has a wrong value, or needs a receiver and none is configured. It reads no file.
func (c ExportConfig) Check() error {
	if !c.On() {
		if c.HeaderFile != "" || c.SpoolDir != "" || c.Cluster != "" {
			return errors.New("--export-header-file, --export-spool-dir and --export-cluster need --export-pyroscope " +
				"or --export-otlp")
		}
		return nil
	}
	if !slices.Contains(clusterprofile.Modes(), cmp.Or(c.Mode, string(clusterprofile.CPU))) {
		return fmt.Errorf("--export-mode must be cpu, offcpu or wall, not %q", c.Mode)
	}
	if c.SpoolDir != "" && !filepath.IsAbs(c.SpoolDir) {
		return errors.New("--export-spool-dir must be an absolute path")
	}
	return c.export().Check()
}

func (c ExportConfig) export() *export.Config {
	return &export.Config{
		Pyroscope: c.Pyroscope, OTLP: c.OTLP, HeaderFile: c.HeaderFile, Interval: c.Interval,
		Mode: cmp.Or(c.Mode, string(clusterprofile.CPU)), Cluster: c.Cluster,
	}
}

// push starts a goroutine that makes and pushes profiles, if a receiver is configured. sameUser says whether the worker has had its
// present user since its start.
func (w *Worker) push(ctx context.Context, wg *sync.WaitGroup, sameUser bool) error {
	if !w.cfg.Export.On() {
		return nil
	}
	cfg := w.cfg.Export.export()
	host, err := os.Hostname()
	if err != nil {
		w.log.Warn().Err(err).Msg("profiles are pushed without the name of this host")
	}
	dir := w.server().Identity()
	cfg.Host, cfg.Version, cfg.Cluster = host, w.cfg.Version, cmp.Or(cfg.Cluster, host+":"+dir)
	cfg.SpoolDir, err = w.cfg.Export.spoolDir(dir, sameUser)
	if err != nil {
		w.log.Warn().Err(err).Msg("profiles wait in memory while the receiver is down; use --export-spool-dir")
	}
	cfg.Log, cfg.Headers = w.log, w.files.headers
	expensive := false
	cfg.Collect = func(ctx context.Context, d time.Duration) (*profile.Profile, error) {
		p, summary, err := w.profile(ctx, clusterprofile.Options{
			Mode: clusterprofile.Mode(cfg.Mode), Duration: d, Rate: limits.ExportRate, CostLimit: limits.ExportCost,
		})
		if err == nil {
			w.reportCost(summary, &expensive)
			foldWorkers(p, state.BackendTypes(w.server().Version))
		}
		return p, err
	}
	if cfg.InClearText() {
		w.log.Warn().Msg("headers or a password for the receiver cross the network in clear text; use https")
	}
	if w.exporter, err = export.New(*cfg); err != nil {
		return err
	}
	w.log.Info().Str("cluster", cfg.Cluster).Str("mode", cfg.Mode).Str("spool", cfg.SpoolDir).Msg("pushing profiles")
	wg.Go(func() { w.exporter.Run(ctx) })
	return nil
}

// foldWorkers gives one type to all background workers except parallel workers, as in the metrics. The receiver makes a
// series for each type, and extensions put ids of jobs, databases and subscriptions into the types of their workers. types
// are the server's own types.
func foldWorkers(p *profile.Profile, types []string) {
	for _, s := range p.Sample {
		kind := s.Label[clusterprofile.LabelBackendType]
		if len(kind) > 0 && kind[0] != state.ParallelWorker && !slices.Contains(types, kind[0]) {
			s.Label[clusterprofile.LabelBackendType] = []string{state.BackgroundWorker}
		}
	}
}

// reportCost logs when a profile ends early because of its cost and the profile before did not, and when a profile lasts for the
// whole interval again. *expensive is set if the profile before ended early.
func (w *Worker) reportCost(s *clusterprofile.Summary, expensive *bool) {
	if s.StoppedByCost == *expensive {
		return
	}
	*expensive = s.StoppedByCost
	if s.StoppedByCost {
		w.log.Warn().Dur("took_ms", s.Took).Float64("limit_percent", 100*limits.ExportCost).
			Msg("profiles to push end early, because they cost too much; --export-mode cpu costs less")
		return
	}
	w.log.Info().Msg("profiles to push last for the whole interval again")
}

// spoolDir returns the folder for the profiles of one server that were not sent yet.
func (c ExportConfig) spoolDir(identity string, sameUser bool) (string, error) {
	base := c.SpoolDir
	if base == "" {
		getenv := func(name string) string {
			if name == debuginfod.EnvCache {
				return "" // this variable is only for debug files
			}
			return os.Getenv(name)
		}
		cache, err := debuginfod.ServiceCacheDir(getenv, os.Geteuid(), sameUser)
		if err != nil {
			return "", errors.New("the worker's user has no folder for a cache")
		}
		base = filepath.Join(filepath.Dir(cache), "pg_stat_backtrace_export")
	}
	sum := sha256.Sum256([]byte(identity))
	return filepath.Join(base, hex.EncodeToString(sum[:8])), nil
}

// exportFigures returns the figures of the export.
func (w *Worker) exportFigures() []metrics.Export {
	if w.exporter == nil {
		return nil
	}
	figures := w.exporter.Figures()
	all := make([]metrics.Export, len(figures))
	for i, f := range figures {
		all[i] = metrics.Export(f)
	}
	return all
}
