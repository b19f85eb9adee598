package pgcluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/pgcluster"
)

// TestConfigurationDirectory names a directory that has the configuration of a server, and not its data.
func TestConfigurationDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := pgcluster.ByDataDir(dir)
	if !errors.Is(err, pgcluster.ErrNotDataDir) || strings.Contains(err.Error(), "data_directory") {
		t.Errorf("an empty directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "postgresql.conf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = pgcluster.ByDataDir(dir)
	if !errors.Is(err, pgcluster.ErrNotDataDir) || !strings.Contains(err.Error(), "data_directory") {
		t.Errorf("a directory of configuration: %v", err)
	}
}
