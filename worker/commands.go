package worker

import (
	"context"
	"maps"

	"pg_stat_backtrace/worker/history/command"
	"pg_stat_backtrace/worker/history/rules"
)

// CommandHelper is the name of the hidden subcommand of "rules" with which the worker starts its helper. The helper is a process
// that runs the command of the file of rules for each alert.
const CommandHelper = "run-command"

// startCommands starts the helper if the file of rules has a command. The caller must call it before the worker gives up the
// system calls that start a program (see fence). The helper runs as the worker's user.
func (w *Worker) startCommands() error {
	c := &w.cfg.Record
	if !c.HasRules() {
		return nil
	}
	loaded, err := c.startRules()
	if err != nil || len(loaded.Command.Run) == 0 {
		return err
	}
	if w.commands, err = command.Start(command.Self("rules", CommandHelper, c.Rules)); err != nil {
		return err
	}
	w.log.Info().Str("program", loaded.Command.Run[0]).Dur("limit_ms", loaded.Command.Timeout).Msg("alerts run a command")
	return nil
}

// endCommands ends the helper and a command that it runs.
func (w *Worker) endCommands() {
	if w.commands != nil {
		w.commands.Close()
	}
}

// runCommands logs the results of commands until ctx ends.
func (w *Worker) runCommands(ctx context.Context) {
	if w.commands == nil {
		return
	}
	stop := context.AfterFunc(ctx, w.commands.Close)
	defer stop()
	err := w.commands.Run(func(r command.Result) {
		level := w.log.Info() //nolint:zerologlint // sent below
		if r.Error != "" {
			level = w.log.Warn().Str("error", r.Error) //nolint:zerologlint // sent below
		}
		level.Str("rule", r.Rule).Int("status", r.Status).Dur("duration_ms", r.Duration).Str("output", r.Output).
			Bool("output_cut", r.Cut).Msg("the command of an alert has ended")
	})
	if ctx.Err() == nil {
		w.log.Error().Err(err).Msg("the helper that runs commands has ended; restart the worker to run commands again")
	}
}

// reloadCommands makes the helper read the file of rules again. c is the new content of the file.
func (w *Worker) reloadCommands(c *rules.Config) {
	switch {
	case w.commands != nil:
		if err := w.commands.Reload(); err != nil {
			w.log.Error().Err(err).Msg("the former command stays")
		}
	case len(c.Command.Run) > 0:
		w.log.Warn().Msg("the file of rules has a command now; restart the worker to run it")
	}
}

// runCommand queues an alert for the command. file is the path of the incident's page; empty: none. It returns false if there is
// no command, or if the alert was not queued.
func (w *Worker) runCommand(j *incidentJob, a rules.Alert, file string) bool {
	if w.commands == nil || len(j.config.Command.Run) == 0 {
		return false
	}
	if file != "" {
		a.Annotations = maps.Clone(a.Annotations)
		a.Annotations["file"] = file
	}
	text, err := a.JSON()
	if err == nil {
		err = w.commands.Send(j.finding.Rule, text)
	}
	if err != nil {
		w.log.Warn().Err(err).Str("rule", j.finding.Rule).Msg("the command of an alert was not run")
	}
	return err == nil
}
