// Package deploy holds the tests of what builds and deploys the product: the images of its commands, the build that
// Google Cloud runs, and the plan that Terraform makes of the example fleet. It exports nothing.
package deploy
