package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/pg/layout"
)

// ErrControl means that global/pg_control of a data directory cannot be read, or has an unknown format.
var ErrControl = errors.New("cannot read pg_control")

// Control is a part of a cluster's control file (ControlFileData in catalog/pg_control.h). The file also exists while no
// server runs.
type Control struct {
	// SystemIdentifier is the number that initdb has given to the cluster. Standbys have the number of their primary.
	SystemIdentifier uint64
	// Timeline is the timeline of the last checkpoint. 0: the format of the file is not known.
	Timeline uint32
	// Checkpoint is the position of the last checkpoint in WAL. 0: the format of the file is not known.
	Checkpoint uint64
}

// ID returns the system identifier in decimal, as pg_control_system() shows it.
func (c Control) ID() string { return strconv.FormatUint(c.SystemIdentifier, 10) }

// ReadControl reads the control file of a data directory. The error wraps ErrControl.
func ReadControl(dir string) (Control, error) {
	const most = 1 << 20
	data, err := rootfs.ReadIn(filepath.Join(dir, "global"), "pg_control", most)
	if err != nil {
		return Control{}, fmt.Errorf("%w: %w", ErrControl, err)
	}
	return parseControl(data)
}

func parseControl(data []byte) (Control, error) {
	const half = 4
	l := &layout.Control
	if len(data) < l.Timeline+half {
		return Control{}, fmt.Errorf("%w: the file has only %d bytes", ErrControl, len(data))
	}
	c := Control{SystemIdentifier: binary.NativeEndian.Uint64(data[l.SystemIdentifier:])}
	if c.SystemIdentifier == 0 {
		return Control{}, fmt.Errorf("%w: the system identifier is 0", ErrControl)
	}
	if v := binary.NativeEndian.Uint32(data[l.Version:]); v >= l.Least && v <= l.Most {
		c.Checkpoint = binary.NativeEndian.Uint64(data[l.Checkpoint:])
		c.Timeline = binary.NativeEndian.Uint32(data[l.Timeline:])
	}
	return c, nil
}
