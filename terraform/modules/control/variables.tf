variable "project" {
  type        = string
  description = "Id of the project."
}

variable "region" {
  type        = string
  description = "Region of the service."
}

variable "name" {
  type        = string
  description = "Name of the service."
}

variable "image" {
  type        = string
  description = "Image that the first apply starts."
}

variable "account" {
  type        = string
  description = "Service account that the control plane is."
}

variable "min_instances" {
  type        = number
  description = "Instances that are always there."
}

variable "max_instances" {
  type        = number
  description = "Most instances."
}

variable "cpu" {
  type        = string
  description = "Processor of an instance."
}

variable "memory" {
  type        = string
  description = "Memory of an instance."
}

variable "ingress" {
  type        = string
  description = "Where requests may come from."
}

variable "iam_check" {
  type        = bool
  description = "Whether Cloud Run asks for run.invoker before the control plane sees a request."
}

variable "url" {
  type        = string
  description = "Public address, which agents call and which identity tokens are made for."
}

variable "store" {
  type        = string
  description = "ERRAND_STORE."
}

variable "bus" {
  type        = string
  description = "ERRAND_BUS."
}

variable "runtime" {
  type        = string
  description = "ERRAND_RUNTIME."
}

variable "auth" {
  type        = any
  description = "What ERRAND_AUTH=oidc:FILE reads."
}

variable "key_secret" {
  type        = string
  description = "Id of the signing key's secret."
}

variable "key_versions" {
  type        = list(string)
  description = "Its versions to mount, the one that signs first."
}

variable "metrics_sidecar" {
  type        = string
  description = "Image of the collector."
}

variable "env" {
  type        = map(string)
  default     = {}
  description = "More environment."
}

variable "labels" {
  type        = map(string)
  default     = {}
  description = "Labels of the service."
}

variable "invokers" {
  type        = map(string)
  description = "IAM members that call the control plane, by a name for the plan."
}
