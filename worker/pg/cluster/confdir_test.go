package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/pg/cluster"
)

// TestConfigurationDirectory calls ByDataDir with a directory that has the configuration of a server, but not its data.
func TestConfigurationDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := cluster.ByDataDir(dir)
	if !errors.Is(err, cluster.ErrNotDataDir) || strings.Contains(err.Error(), "data_directory") {
		t.Errorf("an empty directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "postgresql.conf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = cluster.ByDataDir(dir)
	if !errors.Is(err, cluster.ErrNotDataDir) || !strings.Contains(err.Error(), "data_directory") {
		t.Errorf("a directory of configuration: %v", err)
	}
}
