package cmd

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCmd(*ui) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE:  printVersion,
	}
}

// printVersion prints what the Go toolchain recorded at build time: the module's version, for
// `go install …@v1` as for a tagged checkout, and the commit.
func printVersion(cmd *cobra.Command, _ []string) error {
	version, commit := "(unknown)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				commit = ", commit " + s.Value[:min(12, len(s.Value))]
			case "vcs.time":
				commit += ", " + s.Value
			}
		}
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "pglead %s (%s, %s/%s%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, commit)
	return err
}
