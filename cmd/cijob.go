package cmd

import (
	"net/url"
	"strings"
)

// jobAddress is the address of the CI job that runs this process, or empty. These pages
// document the variables:
//
//	https://docs.github.com/en/actions/reference/workflows-and-actions/variables
//	https://docs.gitlab.com/ci/variables/predefined_variables/
//	https://www.jenkins.io/doc/book/pipeline/jenkinsfile/#using-environment-variables
//	https://buildkite.com/docs/pipelines/configure/environment-variables
//	https://circleci.com/docs/reference/variables/
func jobAddress(getenv func(string) string) string {
	address := ""
	switch {
	case getenv("GITHUB_ACTIONS") == "true":
		address = getenv("GITHUB_SERVER_URL") + "/" + getenv("GITHUB_REPOSITORY") + "/actions/runs/" + getenv("GITHUB_RUN_ID")
	case getenv("GITLAB_CI") == "true":
		address = getenv("CI_JOB_URL")
	case getenv("BUILDKITE") == "true":
		address = getenv("BUILDKITE_BUILD_URL")
		if job := getenv("BUILDKITE_JOB_ID"); job != "" {
			address += "#" + job
		}
	case getenv("CIRCLECI") == "true":
		address = getenv("CIRCLE_BUILD_URL")
	case getenv("JENKINS_URL") != "":
		address = getenv("BUILD_URL")
	}
	u, err := url.Parse(address)
	if err != nil || u.User != nil || u.Host == "" || !strings.HasPrefix(u.Scheme, "http") {
		return "" // others see a note, and this address may contain a password
	}
	return address
}
