// Command golang-migrate prints golang-migrate's lock number for each line of
// its input: a database's name and, after tabs, the names of a schema and a
// table.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/golang-migrate/migrate/v4/database"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		names := strings.Split(lines.Text(), "\t")
		id, err := database.GenerateAdvisoryLockId(names[0], names[1:]...)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(id)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
