package cmd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

func newCheckCmd(u *ui) *cobra.Command {
	f := lookFlags{options: newOptions(u)}
	var within duration
	cmd := &cobra.Command{
		Use:   "check KEY --within D [flags]",
		Short: "Say whether a key succeeded in time; exit 0 yes, 1 late or failed",
		Long: `Say in one line whether the last success of a key ended within a length of time,
and whether runs have failed or been lost since. The exit status is 0 if all is
fine, and 1 if the success is too old or a run has failed since. A later success
makes up for failures.`,
		Example: `  pglead check nightly --within 25h
  pglead check nightly --within 25h || ./page-somebody`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if within.value <= 0 {
				what := "is missing"
				if cmd.Flags().Changed("within") {
					what = within.String() + " is too short"
				}
				return usagef("pglead check nightly --within 25h", "--within %s: how old may the last success be?", what)
			}
			ids, err := f.numbersOf(args[0])
			if err != nil {
				return err
			}
			return f.withLedger(cmd, f.openReader, func(ctx context.Context, on session.Connection) error {
				verdict, err := ledger.Check(ctx, on, args[0], ids, within.value)
				switch {
				case err != nil:
					return err
				case !verdict.Known && strings.ContainsAny(args[0], "*?"): // a key may have a * in it, and then it has run
					return usagef("pglead history "+visible.ShellWord(args[0])+" shows the keys that match",
						"check takes one key, and no run is remembered of %s", printable(args[0]))
				}
				return f.writeVerdict(cmd.OutOrStdout(), args[0], within.value, verdict)
			})
		},
	}
	cmd.Flags().Var(&within, "within", "the longest time since the last success ended (required)")
	f.register(cmd, "output")
	f.lockFlags(cmd)
	return cmd
}

// checkView is the -o json form of a verdict.
type checkView struct {
	Key         string         `json:"key"`
	State       string         `json:"state"` // ok, late or failed
	Text        string         `json:"text"`
	Within      float64        `json:"within_seconds"`
	LastSuccess *successView   `json:"last_success"`
	FailedSince int            `json:"failed_since"`
	LastFailure *runView       `json:"last_failure"`
	Running     []runView      `json:"running"`
	Paused      *inspect.Pause `json:"paused"`
}

type successView struct {
	ledger.Success
	Ago float64 `json:"seconds_ago"`
}

// newSuccessView is nil if there has been no success.
func newSuccessView(s ledger.Success, now time.Time) *successView {
	if s.Ended.IsZero() {
		return nil
	}
	return &successView{s, now.Sub(s.Ended).Seconds()}
}

func (f *lookFlags) writeVerdict(w io.Writer, key string, within time.Duration, v ledger.Health) error {
	state, text := verdictText(key, v)
	view := checkView{
		Key:         key,
		State:       strings.ToLower(state),
		Text:        text,
		Within:      within.Seconds(),
		LastSuccess: newSuccessView(v.Success, v.Now),
		FailedSince: v.Failed,
		Running:     runViews(v.Running),
		Paused:      pauseOf(key, v.Pause),
	}
	if v.Failed > 0 {
		view.LastFailure = new(newRunView(v.Failure))
	}
	err := f.print(w, view, text+"\n")
	if err == nil && !v.Fine() {
		return &silentExit{code: exitNo}
	}
	return err
}

// verdictText is one line for a pager, with short parts.
func verdictText(key string, v ledger.Health) (state, text string) {
	const mostKey, mostHost, mostPause = 40, 30, 60
	host := func(s string) string { return shorten(visible.Text(s), mostHost) }
	state = "ok"
	switch {
	case v.Late:
		state = "LATE"
	case v.Failed > 0:
		state = "FAILED"
	}
	text = squeeze(printable(key), mostKey) + ": " + state
	switch {
	case !v.Success.Ended.IsZero():
		text += fmt.Sprintf(", last success %s on %s, %s ago", when(v.Success.Started, v.Now), host(v.Success.Host), ago(v))
	case v.Known:
		text += ", no success yet"
	default:
		text += ", no run yet"
	}
	switch {
	case v.Failed == 1:
		text += "; failed once"
	case v.Failed > 1:
		text += fmt.Sprintf("; failed %d times", v.Failed)
	}
	if v.Failed > 0 && !v.Success.Ended.IsZero() {
		text += " since"
	}
	var running []string
	for _, r := range v.Running {
		running = append(running, host(r.Host)+" for "+roughly(v.Now.Sub(r.Started)))
	}
	if len(running) > 0 {
		text += "; running on " + few(running, 1)
	}
	if v.Pause.Paused() {
		text += "; paused " + shorten(visible.Text(v.Pause.String()), mostPause)
	}
	return state, text
}

// ago counts from a run's end, and says so if the start would give another result.
func ago(v ledger.Health) string {
	if sinceEnd := roughly(v.Ago()); sinceEnd != roughly(v.Now.Sub(v.Success.Started)) {
		return "ended " + sinceEnd
	}
	return roughly(v.Ago())
}
